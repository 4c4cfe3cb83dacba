// LibTorch's wheel has gloo inside, but not its headers. ProcessGroupGloo.hpp needs these few declarations of it.
#pragma once
#include "gloo/context.h"
