// Preloaded into Node: limits the threads that the addon can start to CAPSTAN_TEST_THREADS_LEFT, counted from the moment
// the variable changes. Unset or empty: no limit.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef int (*Create)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char last_limit[16];
static int num_left;

static int takes_one(void) {
  const char* limit = getenv("CAPSTAN_TEST_THREADS_LEFT");
  if (limit == NULL || *limit == 0) {
    last_limit[0] = 0;
    return 1;
  }
  if (strcmp(limit, last_limit) != 0) {
    strncpy(last_limit, limit, sizeof last_limit - 1);
    num_left = atoi(limit);
  }
  return num_left-- > 0;
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*), void* data) {
  // Node's own threads do not come from the C++ library that the addon uses.
  Dl_info caller;
  const int is_addon =
      dladdr(__builtin_return_address(0), &caller) != 0 && strstr(caller.dli_fname, "libstdc++") != NULL;
  pthread_mutex_lock(&mutex);
  const int may_start = !is_addon || takes_one();
  pthread_mutex_unlock(&mutex);
  if (!may_start) return EAGAIN;
  return ((Create)dlsym(RTLD_NEXT, "pthread_create"))(thread, attributes, start, data);
}
