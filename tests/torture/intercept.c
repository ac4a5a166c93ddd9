/* Calls that change files, handed to a Python function before they happen; allocations that fail;
   a wall clock that jumps.

   Preloaded (LD_PRELOAD), so that Python, torch, safetensors and Arrow all pass through it. Only paths
   below one folder count. The function returns 0 (go on), an errno (fail with it) or -1 (write half of
   the bytes, ask again, then write the rest). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

typedef int (*hook_type)(const char *call, const char *path, int descriptor);
static hook_type hook;
static char folder[PATH_MAX];
static __thread int inside;

void torture_arm(hook_type function, const char *path) {
  snprintf(folder, sizeof folder, "%s", path ? path : "");
  hook = function;
}

#define REAL(name) \
  static __typeof__(&name) real; \
  if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static int ask(const char *call, const char *path, int descriptor) {
  if (!hook || inside || strncmp(path, folder, strlen(folder))) return 0;
  inside = 1;
  int saved = errno, answer = hook(call, path, descriptor);
  errno = saved;
  inside = 0;
  return answer;
}

static int ask_fd(const char *call, int descriptor) {
  if (!hook || inside) return 0;
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return ask(call, path, descriptor);
}

static int ask_at(const char *call, int folder_descriptor, const char *path) {
  if (!hook || inside) return 0;
  if (path[0] == '/' || folder_descriptor == AT_FDCWD) return ask(call, path, -1);
  char link[64], base[PATH_MAX], whole[2 * PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", folder_descriptor);
  ssize_t length = readlink(link, base, sizeof base - 1);
  if (length < 0) return 0;
  base[length] = 0;
  snprintf(whole, sizeof whole, "%s/%s", base, path);
  return ask(call, whole, -1);
}

#define CHECK(question) \
  do { int answer = (question); if (answer > 0) { errno = answer; return -1; } } while (0)

#define OPEN(name) \
  int name(const char *path, int flags, ...) { \
    REAL(name); \
    mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); } \
    if (flags & (O_CREAT | O_TRUNC)) CHECK(ask("open", path, -1)); \
    return real(path, flags, mode); \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
  int name(int base, const char *path, int flags, ...) { \
    REAL(name); \
    mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); } \
    if (flags & (O_CREAT | O_TRUNC)) CHECK(ask_at("open", base, path)); \
    return real(base, path, flags, mode); \
  }
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int descriptor, const void *bytes, size_t count) {
  REAL(write);
  int answer = ask_fd("write", descriptor);
  if (answer > 0) { errno = answer; return -1; }
  if (answer == -1 && count > 1) {
    ssize_t half = real(descriptor, bytes, count / 2);
    if (half < 0) return half;
    CHECK(ask_fd("half", descriptor));
    ssize_t rest = real(descriptor, (const char *)bytes + half, count - half);
    return rest < 0 ? rest : half + rest;
  }
  return real(descriptor, bytes, count);
}

ssize_t pwrite64(int descriptor, const void *bytes, size_t count, off64_t offset) {
  REAL(pwrite64);
  CHECK(ask_fd("write", descriptor));
  return real(descriptor, bytes, count, offset);
}

ssize_t writev(int descriptor, const struct iovec *pieces, int count) {
  REAL(writev);
  CHECK(ask_fd("write", descriptor));
  return real(descriptor, pieces, count);
}

int rename(const char *from, const char *to) { REAL(rename); CHECK(ask("rename", to, -1)); return real(from, to); }
int renameat(int a, const char *from, int b, const char *to) { REAL(renameat); CHECK(ask_at("rename", b, to)); return real(a, from, b, to); }
int unlink(const char *path) { REAL(unlink); CHECK(ask("unlink", path, -1)); return real(path); }
int unlinkat(int base, const char *path, int flags) { REAL(unlinkat); CHECK(ask_at("unlink", base, path)); return real(base, path, flags); }
int rmdir(const char *path) { REAL(rmdir); CHECK(ask("rmdir", path, -1)); return real(path); }
int mkdir(const char *path, mode_t mode) { REAL(mkdir); CHECK(ask("mkdir", path, -1)); return real(path, mode); }
int fsync(int descriptor) { REAL(fsync); CHECK(ask_fd("fsync", descriptor)); return real(descriptor); }
int ftruncate64(int descriptor, off64_t length) { REAL(ftruncate64); CHECK(ask_fd("truncate", descriptor)); return real(descriptor, length); }
int ftruncate(int descriptor, off_t length) { REAL(ftruncate); CHECK(ask_fd("truncate", descriptor)); return real(descriptor, length); }

/* -- memory: allocation number `failing` of at least `smallest` bytes fails, counted from torture_memory -- */
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t), *__libc_memalign(size_t, size_t);
static long allocations, failing = -1, failing_count;
static size_t smallest;

void torture_memory(long number, long count, size_t bytes) {
  allocations = 0;
  failing_count = count;
  smallest = bytes;
  failing = number;
}

long torture_allocations(void) { return allocations; }

static int fails(size_t bytes) {
  if (failing < 0 || bytes < smallest) return 0;
  long number = __atomic_fetch_add(&allocations, 1, __ATOMIC_RELAXED);
  if (number < failing || number >= failing + failing_count) return 0;
  errno = ENOMEM;
  return 1;
}

void *malloc(size_t bytes) { return fails(bytes) ? NULL : __libc_malloc(bytes); }
void *calloc(size_t count, size_t bytes) { return fails(count * bytes) ? NULL : __libc_calloc(count, bytes); }
void *realloc(void *old, size_t bytes) { return fails(bytes) ? NULL : __libc_realloc(old, bytes); }
void *memalign(size_t align, size_t bytes) { return fails(bytes) ? NULL : __libc_memalign(align, bytes); }
void *aligned_alloc(size_t align, size_t bytes) { return fails(bytes) ? NULL : __libc_memalign(align, bytes); }
int posix_memalign(void **place, size_t align, size_t bytes) {
  if (fails(bytes)) return ENOMEM;
  void *memory = __libc_memalign(align, bytes);
  if (!memory) return ENOMEM;
  *place = memory;
  return 0;
}

/* -- the wall clock: it jumps by `jump` seconds after `patience` readings, and back after as many more -- */
static long readings, patience = -1, jump;

void torture_clock(long number, long seconds) {
  readings = 0;
  jump = seconds;
  patience = number;
}

long torture_readings(void) { return readings; }

static long shift(void) {
  if (patience < 0) return 0;
  long number = __atomic_fetch_add(&readings, 1, __ATOMIC_RELAXED);
  return number >= patience && number < 2 * patience + 1 ? jump : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  REAL(clock_gettime);
  int result = real(clock, now);
  if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += shift();
  return result;
}

int gettimeofday(struct timeval *now, void *zone) {
  REAL(gettimeofday);
  int result = real(now, zone);
  if (!result) now->tv_sec += shift();
  return result;
}

time_t time(time_t *place) {
  REAL(time);
  time_t now = real(NULL) + shift();
  if (place) *place = now;
  return now;
}
