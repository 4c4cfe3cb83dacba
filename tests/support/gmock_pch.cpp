// Carries the precompiled headers of GoogleTest.
