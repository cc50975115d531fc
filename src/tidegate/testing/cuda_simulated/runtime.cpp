/* How a kernel is run on the host: linked to every source, apart from it, so that its names are free for kernels.
 *
 * A kernel that touches what is not mapped raises a signal; while a thread is inside a kernel that ends the kernel and
 * nothing else, as it does on a device. The first library that is loaded serves all.
 */
#include <dlfcn.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <ucontext.h>

#define EXPORTED extern "C" __attribute__((visibility("default")))

/* As in prelude.h. */
struct TidegateLaunch {
    unsigned grid[3], block[3];
    void *shared;
    void **params;
    void (*stop)(int);
    long long (*clock)(void);
    void (*doze)(unsigned);
    void (*barrier)(void);
    void (*crew)(unsigned, void (*)(unsigned, void *), void *);
};
struct TidegateKernel {
    const void *function;
    void (*run)(const TidegateLaunch *);
    unsigned count;
    const void *parameters;
};
extern "C" const TidegateKernel tidegate_kernels[];

namespace {

const size_t STACK = 256 * 1024;

struct Crew {
    ucontext_t home;
    ucontext_t *members;
    unsigned at;
    char *done;
    void (*body)(unsigned, void *);
    void *data;
};

thread_local sigjmp_buf *way_out;
thread_local Crew *crew;
const int SIGNALS[] = {SIGSEGV, SIGBUS, SIGILL};
struct sigaction before[3];

void stop(int code) { siglongjmp(*way_out, code); }

void on_signal(int number, siginfo_t *info, void *context) {
    if (way_out) siglongjmp(*way_out, 700);
    const struct sigaction &old = before[number == SIGSEGV ? 0 : number == SIGBUS ? 1 : 2];
    if (old.sa_flags & SA_SIGINFO) old.sa_sigaction(number, info, context);
    else if (old.sa_handler != SIG_DFL && old.sa_handler != SIG_IGN) old.sa_handler(number);
    else sigaction(number, &old, 0); /* comes again, and ends the process */
}

long long now() {
    struct timespec t;
    sched_yield(); /* who asks for the time in a loop is waiting */
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

void doze(unsigned ns) {
    struct timespec t = {0, (long)(ns < 50000 ? 50000 : ns % 1000000000u)};
    nanosleep(&t, 0);
}

void member() {
    Crew *mine = crew;
    mine->body(mine->at, mine->data);
    mine->done[mine->at] = 1;
    swapcontext(&mine->members[mine->at], &mine->home);
}

void barrier() {
    if (crew) swapcontext(&crew->members[crew->at], &crew->home);
}

void run_crew(unsigned count, void (*body)(unsigned, void *), void *data) {
    Crew mine;
    mine.members = (ucontext_t *)calloc(count, sizeof(ucontext_t));
    mine.done = (char *)calloc(count, 1);
    mine.body = body;
    mine.data = data;
    char *stacks = (char *)malloc(count * STACK);
    crew = &mine;
    for (unsigned i = 0; i < count; ++i) {
        getcontext(&mine.members[i]);
        mine.members[i].uc_stack.ss_sp = stacks + i * STACK;
        mine.members[i].uc_stack.ss_size = STACK;
        mine.members[i].uc_link = 0;
        makecontext(&mine.members[i], member, 0);
    }
    for (unsigned left = count; left;) {
        left = 0;
        for (unsigned i = 0; i < count; ++i)
            if (!mine.done[i]) {
                mine.at = i;
                swapcontext(&mine.home, &mine.members[i]);
                left += !mine.done[i];
            }
    }
    crew = 0;
    free(stacks);
    free(mine.members);
    free(mine.done);
}

}  // namespace

EXPORTED void tidegate_catch_signals(void) {
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    for (int i = 0; i < 3; ++i) sigaction(SIGNALS[i], &action, &before[i]);
}

EXPORTED int tidegate_guarded(void (*run)(const TidegateLaunch *), TidegateLaunch *launch) {
    sigjmp_buf here;
    int code = sigsetjmp(here, 1);
    if (code == 0) {
        way_out = &here;
        launch->stop = stop;
        launch->clock = now;
        launch->doze = doze;
        launch->barrier = barrier;
        launch->crew = run_crew;
        run(launch);
    }
    crew = 0;
    way_out = 0;
    return code;
}

EXPORTED const char *tidegate_name(unsigned i) {
    Dl_info info;
    return dladdr(tidegate_kernels[i].function, &info) && info.dli_sname ? info.dli_sname : "";
}
