#include "../../core/engine/engine.hpp"
