// Carries the precompiled torch/torch.h.
