/* For LD_PRELOAD: shifts the wall clock of a process and its children. The environment variable TEST_CLOCK_OFFSET names
 * a file with the offset in seconds as a native int64, which may change at any time. The monotonic clock is unchanged,
 * as when an administrator sets the time. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t zero, *offset = &zero;
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void start(void) {
    real = dlsym(RTLD_NEXT, "clock_gettime");
    const char *file = getenv("TEST_CLOCK_OFFSET");
    int fd = file ? open(file, O_RDONLY | O_CLOEXEC) : -1;
    void *page = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof zero, PROT_READ, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED) offset = page;
    if (fd >= 0) close(fd);
}

int clock_gettime(clockid_t id, struct timespec *at) {
    if (!real) start();
    int result = real(id, at);
    if (!result && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += *offset;
    return result;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    (void)zone;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec, at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
