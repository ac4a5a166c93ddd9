/* Calls that change files, handed to a Python function before they happen.

   Preloaded (LD_PRELOAD), so that Python, safetensors and Arrow all pass through it. Only paths below
   one folder count. The function returns 0 (go on), an errno (fail with it) or -1 (write half of the
   bytes, ask again, then write the rest). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
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
