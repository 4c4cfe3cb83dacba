#pragma once
#include "core/config/rules/rules.hpp"
