#pragma once

namespace capstan::bench {

/// What a program prints behind a figure and its bound.
inline const char* mark(bool met) { return met ? "" : ": NOT MET"; }

/// The exit code of a program that holds what it measured against a bound.
inline int exit_code(bool met) { return met ? 0 : 1; }

}  // namespace capstan::bench
