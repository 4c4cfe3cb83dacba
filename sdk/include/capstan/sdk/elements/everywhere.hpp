#pragma once

/// A function for the host and for devices.
#ifdef __CUDACC__
#define CAPSTAN_EVERYWHERE __host__ __device__
#else
#define CAPSTAN_EVERYWHERE
#endif
