#pragma once

namespace capstan {

/// Has MKL set up its vector functions, which LibTorch calls for exp, log, tanh, erf, sin and others from several
/// threads at once. MKL sets them up in the first call of a process without a lock. Where two threads make that call at
/// once, one of them may compute with a relative error of 1e-4, so that the first forward gives other losses and
/// gradients. Called before other threads compute; a second call does nothing. [any thread]
void prepare_vector_math();

}  // namespace capstan
