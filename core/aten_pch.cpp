// Carries the precompiled aten_pch.hpp.
