#pragma once
#include "core/engine/engine.hpp"
