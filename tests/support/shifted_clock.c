/* Clocks that are set while programs run, for whoever is started with LD_PRELOAD of this library: the file that
   CAPSTAN_TEST_CLOCK names holds two 64-bit numbers, the seconds that are added to the time of day and to the steady
   clock. Waits until a time of day wait as long as their caller means. With CAPSTAN_TEST_CLOCK_ALONE the processes that
   a program starts see the true time. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct shifts {
  volatile int64_t of_day, steady;
};
static const struct shifts kNone;
static const struct shifts* shifts = &kNone;

__attribute__((constructor)) static void begin(void) {
  const char* file = getenv("CAPSTAN_TEST_CLOCK");
  const int descriptor = file ? open(file, O_RDONLY | O_CLOEXEC) : -1;
  void* page = descriptor < 0 ? MAP_FAILED : mmap(NULL, sizeof *shifts, PROT_READ, MAP_SHARED, descriptor, 0);
  if (page != MAP_FAILED) shifts = page;
  if (descriptor >= 0) close(descriptor);
  if (getenv("CAPSTAN_TEST_CLOCK_ALONE")) unsetenv("LD_PRELOAD");
}

static int64_t shift_of(clockid_t clock) {
  switch (clock) {
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_COARSE:
    case CLOCK_TAI:
      return shifts->of_day;
    case CLOCK_MONOTONIC:
    case CLOCK_MONOTONIC_COARSE:
    case CLOCK_MONOTONIC_RAW:
    case CLOCK_BOOTTIME:
      return shifts->steady;
    default:
      return 0;
  }
}

int clock_gettime(clockid_t clock, struct timespec* to) {
  const int failure = (int)syscall(SYS_clock_gettime, clock, to);
  if (failure == 0) to->tv_sec += shift_of(clock);
  return failure;
}

int gettimeofday(struct timeval* to, void* zone) {
  (void)zone;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  to->tv_sec = now.tv_sec;
  to->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* to) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (to) *to = now.tv_sec;
  return now.tv_sec;
}

/* As the system sees the moment. */
static struct timespec true_time(clockid_t clock, const struct timespec* until) {
  struct timespec moment = *until;
  moment.tv_sec -= shift_of(clock);
  return moment;
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const struct timespec* until) {
  static int (*next)(pthread_cond_t*, pthread_mutex_t*, const struct timespec*);
  if (!next) *(void**)&next = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
  /* Which clock a condition goes by only its maker knows; no machine runs for thirty years. */
  const struct timespec moment = true_time(until->tv_sec < 1000000000 ? CLOCK_MONOTONIC : CLOCK_REALTIME, until);
  return next(condition, mutex, &moment);
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* until) {
  static int (*next)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);
  if (!next) *(void**)&next = dlsym(RTLD_NEXT, "pthread_cond_clockwait");
  const struct timespec moment = true_time(clock, until);
  return next(condition, mutex, clock, &moment);
}
