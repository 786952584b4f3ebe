// The host executor's scheduler: one fiber per Metal thread, on one operating-system thread.
//
// A threadgroup runs SIMD group by SIMD group. Within a SIMD group every lane runs until it stops:
// at a collective (a SIMD-group function), at a threadgroup barrier, or at its end. When the last
// lane has stopped, all must have stopped at the same place; then the next round begins. When all
// SIMD groups stand at the same barrier, the next phase begins. Fibers switch directly to each
// other. A fiber takes the next unstarted lane when its own lane ends, so a kernel that never
// waits runs on one stack.
#define _GNU_SOURCE
#if defined(__APPLE__)
#define _XOPEN_SOURCE 700
#define _DARWIN_C_SOURCE
#endif
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

enum { LANES = 32, MAX_THREADS = 1024, MAX_ARRAYS = 64, STACK_BYTES = 256 * 1024, STACK_GUARD = 1024 * 1024 };

// Shared with kernel.py (ctypes).
enum outcome {
  FINISHED = 0,
  DIVERGENT_COLLECTIVE,  // some lanes of a SIMD group at `site`, another one at `other_site`
  DIVERGENT_BARRIER,     // some SIMD groups at the barrier `site`, another one at `other_site`
  MEMORY_FAULT,
  MISALIGNED,
  INACTIVE_LANE,
  THREADGROUP_MEMORY,
  ARITHMETIC_FAULT,
};
struct site { uint32_t line, column; };  // line 0: the end of the kernel
struct report {
  int32_t outcome;
  struct site site, other_site;
  uint32_t group[3], thread, other_thread;
  uint64_t address, instruction;
  int32_t is_write;
  uint32_t detail;
};
struct launch {
  uint32_t grid[3], threadgroup[3];
  int32_t order;  // 0 forward, 1 reverse, 2 random
  uint64_t seed;
  uint8_t poison;
  uint8_t at_end;  // threadgroup arrays end, rather than begin, at a guard page
};
struct counters { uint64_t barriers, collectives, threadgroup_bytes, threads; };
// Shared with the generated entry point (translate.py).
struct thread_state {
  uint32_t position_in_threadgroup[3], threadgroup_position[3];
  uint32_t threads_per_threadgroup[3], threads_per_grid[3], threadgroups_per_grid[3];
  uint32_t dispatch_threads_per_threadgroup[3];
  uint32_t index;
};
typedef void (*entry_point)(const void *buffers, const struct thread_state *state);

// Shared with msl_simd.h.
struct rendezvous {
  _Alignas(16) uint8_t values[LANES][16];
  _Alignas(16) uint8_t result[16];
  uint32_t active, reduced;
};

enum state { UNSTARTED, AT_COLLECTIVE, AT_BARRIER, ENDED };
struct fiber { void *stack_pointer; uint8_t *stack; struct fiber *next_free; };
struct lane { struct fiber *fiber; enum state state; struct site site; };
struct array { uint8_t *region, *base; uint64_t capacity, bytes; uint32_t epoch; };

static struct {
  entry_point entry;
  const void *buffers;
  struct launch launch;
  struct report *report;
  struct counters counters;
  struct thread_state thread;
  struct lane lanes[MAX_THREADS];
  uint32_t threads, simd_groups;
  uint32_t current;                    // the lane that runs now
  uint32_t order[MAX_THREADS / LANES]; // SIMD groups in the order of this phase
  uint32_t group_cursor;
  uint32_t lane_order[LANES];          // within the SIMD group that runs now
  uint32_t lane_cursor, lane_count;
  int mismatch;
  uint64_t next_group, group_count;
  uint64_t random;
  struct rendezvous rendezvous[2];
  uint32_t round;
  struct array arrays[MAX_ARRAYS];
  uint32_t epoch;                      // a new one for each threadgroup
  uint32_t spurious;
  void *main_stack_pointer;
  struct fiber *free_fibers, *all_fibers[MAX_THREADS + 1];
  uint32_t fiber_count;
  volatile sig_atomic_t running;
} rt;

// ---- context switch: save callee-saved registers, exchange stacks ----
void msl_switch(void **save, void *load);
#if defined(__x86_64__)
__asm__(
#if defined(__APPLE__)
    ".globl _msl_switch\n_msl_switch:\n"
#else
    ".text\n.globl msl_switch\n.hidden msl_switch\n.type msl_switch,@function\nmsl_switch:\n"
#endif
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");
#elif defined(__aarch64__)
__asm__(
#if defined(__APPLE__)
    ".globl _msl_switch\n.p2align 2\n_msl_switch:\n"
#else
    ".text\n.globl msl_switch\n.hidden msl_switch\n.type msl_switch,%function\nmsl_switch:\n"
#endif
    "sub sp, sp, #160\n"
    "stp x19, x20, [sp]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\n"
    "stp x25, x26, [sp, #48]\nstp x27, x28, [sp, #64]\nstp x29, x30, [sp, #80]\n"
    "stp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\nstp d12, d13, [sp, #128]\n"
    "stp d14, d15, [sp, #144]\n"
    "mov x9, sp\nstr x9, [x0]\nmov sp, x1\n"
    "ldp x19, x20, [sp]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\n"
    "ldp x25, x26, [sp, #48]\nldp x27, x28, [sp, #64]\nldp x29, x30, [sp, #80]\n"
    "ldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\nldp d12, d13, [sp, #128]\n"
    "ldp d14, d15, [sp, #144]\n"
    "add sp, sp, #160\nret\n");
#else
#error "the host executor knows x86-64 and aarch64"
#endif

static void stop_running(int outcome) __attribute__((noreturn));
static void stop_running(int outcome) {
  rt.report->outcome = outcome;
  for (int i = 0; i < 3; i++) rt.report->group[i] = rt.thread.threadgroup_position[i];
  if (outcome != DIVERGENT_COLLECTIVE && outcome != DIVERGENT_BARRIER) rt.report->thread = rt.current;
  void *abandoned;
  msl_switch(&abandoned, rt.main_stack_pointer);
  __builtin_unreachable();
}

// ---- order ----
static uint64_t next_random(uint64_t bound) {
  rt.random += 0x9e3779b97f4a7c15u;
  uint64_t z = rt.random;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return (z ^ (z >> 31)) % bound;
}
static void arrange(uint32_t *order, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) order[i] = rt.launch.order == 1 ? n - 1 - i : i;
  if (rt.launch.order != 2) return;
  for (uint32_t i = n; i > 1; i--) {
    uint32_t j = (uint32_t)next_random(i), t = order[i - 1];
    order[i - 1] = order[j];
    order[j] = t;
  }
}

// ---- progress through lanes, SIMD groups, phases and threadgroups ----
static void place_thread(uint32_t index) {
  const uint32_t *size = rt.thread.threads_per_threadgroup;
  rt.current = index;
  rt.thread.index = index;
  if (size[1] == 1 && size[2] == 1) {
    rt.thread.position_in_threadgroup[0] = index;
    return;
  }
  rt.thread.position_in_threadgroup[0] = index % size[0];
  rt.thread.position_in_threadgroup[1] = index / size[0] % size[1];
  rt.thread.position_in_threadgroup[2] = index / size[0] / size[1];
}

static void begin_simd_group(void) {
  uint32_t group = rt.order[rt.group_cursor];
  uint32_t first = group * LANES, count = rt.threads - first < LANES ? rt.threads - first : LANES;
  if (count != rt.lane_count || rt.launch.order == 2) arrange(rt.lane_order, count);
  rt.lane_count = count;
  rt.lane_cursor = 0;
  rt.mismatch = 0;
  rt.round ^= 1;
  rt.rendezvous[rt.round].reduced = 0;
  rt.rendezvous[rt.round].active = count == LANES ? 0xffffffffu : (1u << count) - 1;
}

static int begin_threadgroup(void) {
  if (rt.next_group == rt.group_count) return 0;
  uint64_t n = rt.next_group++;
  if (rt.launch.order == 1) n = rt.group_count - 1 - n;
  // A random multiplicative order of threadgroups needs no table: step through with a co-prime stride.
  if (rt.launch.order == 2) n = (n * 2654435761u + rt.launch.seed) % rt.group_count;
  const uint32_t *groups = rt.thread.threadgroups_per_grid;
  uint32_t position[3] = {(uint32_t)(n % groups[0]), (uint32_t)(n / groups[0] % groups[1]),
                          (uint32_t)(n / groups[0] / groups[1])};
  rt.threads = 1;
  for (int i = 0; i < 3; i++) {
    rt.thread.threadgroup_position[i] = position[i];
    uint32_t left = rt.launch.grid[i] - position[i] * rt.launch.threadgroup[i];
    uint32_t size = left < rt.launch.threadgroup[i] ? left : rt.launch.threadgroup[i];
    rt.thread.threads_per_threadgroup[i] = size;
    rt.threads *= size;
    rt.thread.position_in_threadgroup[i] = 0;
  }
  rt.simd_groups = (rt.threads + LANES - 1) / LANES;
  for (uint32_t i = 0; i < rt.threads; i++) rt.lanes[i].state = UNSTARTED;
  rt.counters.threads += rt.threads;
  rt.epoch++;
  arrange(rt.order, rt.simd_groups);
  rt.group_cursor = 0;
  begin_simd_group();
  return 1;
}

static int same_stop(const struct lane *a, const struct lane *b) {
  return a->state == b->state && a->site.line == b->site.line && a->site.column == b->site.column;
}
static void report_difference(int outcome, uint32_t a, uint32_t b) __attribute__((noreturn));
static void report_difference(int outcome, uint32_t a, uint32_t b) {
  // Name the waiting thread first: the other one may have ended.
  if (rt.lanes[a].state == ENDED) { uint32_t t = a; a = b; b = t; }
  rt.report->thread = a;
  rt.report->site = rt.lanes[a].site;
  rt.report->other_thread = b;
  rt.report->other_site = rt.lanes[b].site;
  rt.report->detail = rt.lanes[a].state == AT_BARRIER;
  stop_running(outcome);
}

// The current lane has stopped. Find the lane to run next; -1 when the whole grid has ended.
static int64_t next_lane(void) {
  uint32_t base = rt.order[rt.group_cursor] * LANES;
  if (!same_stop(&rt.lanes[rt.current], &rt.lanes[base + rt.lane_order[0]])) rt.mismatch = 1;
  if (++rt.lane_cursor < rt.lane_count) return base + rt.lane_order[rt.lane_cursor];

  const struct lane *stop = &rt.lanes[rt.current];
  if (rt.mismatch) {
    uint32_t a = base + rt.lane_order[0], b = a;
    for (uint32_t i = 0; i < rt.lane_count; i++)
      if (!same_stop(&rt.lanes[base + i], &rt.lanes[a])) { b = base + i; break; }
    int barrier = rt.lanes[a].state == AT_BARRIER || rt.lanes[b].state == AT_BARRIER;
    int collective = rt.lanes[a].state == AT_COLLECTIVE || rt.lanes[b].state == AT_COLLECTIVE;
    report_difference(barrier && !collective ? DIVERGENT_BARRIER : DIVERGENT_COLLECTIVE, a, b);
  }
  if (stop->state == AT_COLLECTIVE) {
    rt.counters.collectives++;
    begin_simd_group();
    return base + rt.lane_order[0];
  }
  // This SIMD group stands at a barrier or has ended: the next one takes its turn.
  if (++rt.group_cursor < rt.simd_groups) {
    begin_simd_group();
    return rt.order[rt.group_cursor] * LANES + rt.lane_order[0];
  }
  for (uint32_t g = 1; g < rt.simd_groups; g++)
    if (!same_stop(&rt.lanes[g * LANES], &rt.lanes[0])) report_difference(DIVERGENT_BARRIER, 0, g * LANES);
  if (stop->state == AT_BARRIER) {
    rt.counters.barriers++;
    arrange(rt.order, rt.simd_groups);
    rt.group_cursor = 0;
    begin_simd_group();
    return rt.order[0] * LANES + rt.lane_order[0];
  }
  if (!begin_threadgroup()) return -1;
  return rt.order[0] * LANES + rt.lane_order[0];
}

// ---- fibers ----
static void fiber_main(void) {
  for (;;) {
    struct lane *lane = &rt.lanes[rt.current];
    struct fiber *self = lane->fiber;
    rt.entry(rt.buffers, &rt.thread);
    lane = &rt.lanes[rt.current];
    lane->state = ENDED;
    lane->site.line = lane->site.column = 0;
    int64_t next = next_lane();
    if (next < 0) stop_running(FINISHED);
    place_thread((uint32_t)next);
    struct lane *to = &rt.lanes[next];
    if (to->state == UNSTARTED) {
      to->fiber = self;
      continue;
    }
    self->next_free = rt.free_fibers;
    rt.free_fibers = self;
    msl_switch(&self->stack_pointer, to->fiber->stack_pointer);
  }
}

static uint64_t page_size(void) {
  static uint64_t size;
  if (!size) size = (uint64_t)sysconf(_SC_PAGESIZE);
  return size;
}

static struct fiber *take_fiber(void) {
  struct fiber *fiber = rt.free_fibers;
  if (fiber) {
    rt.free_fibers = fiber->next_free;
    return fiber;
  }
  fiber = calloc(1, sizeof *fiber);
  uint8_t *region = mmap(NULL, STACK_GUARD + STACK_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
  fiber->stack = region + STACK_GUARD;
  mprotect(fiber->stack, STACK_BYTES, PROT_READ | PROT_WRITE);
  rt.all_fibers[rt.fiber_count++] = fiber;
  return fiber;
}
// A fiber whose stack is abandoned (or new) starts at fiber_main.
static void prepare_fiber(struct fiber *fiber) {
  void **top = (void **)(fiber->stack + STACK_BYTES - 64);
#if defined(__x86_64__)
  *--top = NULL;
  *--top = (void *)fiber_main;  // return address: the stack is then 16n + 8, as after a call
  for (int i = 0; i < 6; i++) *--top = NULL;
#else
  top -= 20;
  memset(top, 0, 160);
  top[11] = (void *)fiber_main;  // x30
#endif
  fiber->stack_pointer = top;
}

static void wait_here(enum state state, uint32_t line, uint32_t column) {
  struct lane *lane = &rt.lanes[rt.current];
  lane->state = state;
  lane->site.line = line;
  lane->site.column = column;
  uint32_t me = rt.current;
  int64_t next = next_lane();
  place_thread((uint32_t)next);
  if (next == me) return;
  struct lane *to = &rt.lanes[next];
  if (to->state == UNSTARTED) {
    to->fiber = take_fiber();
    if (!to->fiber->stack_pointer) prepare_fiber(to->fiber);
  }
  msl_switch(&lane->fiber->stack_pointer, to->fiber->stack_pointer);
}

// ---- what kernels call ----
struct rendezvous *msl_collective(uint32_t line, uint32_t column, const void *value, uint32_t bytes) {
  struct rendezvous *meeting = &rt.rendezvous[rt.round];
  uint8_t *slot = meeting->values[rt.current % LANES];
  if (bytes == 4) memcpy(slot, value, 4);
  else if (bytes) memcpy(slot, value, bytes);
  wait_here(AT_COLLECTIVE, line, column);
  return meeting;
}
void msl_threadgroup_barrier(uint32_t line, uint32_t column) { wait_here(AT_BARRIER, line, column); }
uint32_t msl_lane(void) { return rt.current % LANES; }
uint32_t msl_spurious_failure(void) { return ++rt.spurious % 5 == 0; }
void msl_inactive_lane(uint32_t line, uint32_t column, uint32_t lane) {
  rt.report->site = (struct site){line, column};
  rt.report->detail = lane;
  stop_running(INACTIVE_LANE);
}

void *msl_threadgroup_memory(uint32_t id, uint64_t bytes, uint64_t alignment) {
  struct array *array = &rt.arrays[id];
  if (array->epoch == rt.epoch) return array->base;
  uint64_t page = page_size();
  if (array->bytes != bytes) {
    if (array->region) munmap(array->region, array->capacity + 2 * page);
    array->bytes = bytes;
    array->capacity = (bytes + page - 1) / page * page;
    array->region = mmap(NULL, array->capacity + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANON, -1, 0);
    mprotect(array->region + page, array->capacity, PROT_READ | PROT_WRITE);
  }
  array->base = array->region + page;
  if (rt.launch.at_end) array->base += (array->capacity - bytes) / alignment * alignment;
  array->epoch = rt.epoch;
  memset(array->base, rt.launch.poison, bytes);
  uint64_t total = 0;
  for (int i = 0; i < MAX_ARRAYS; i++)
    if (rt.arrays[i].epoch == rt.epoch) total += (rt.arrays[i].bytes + 15) / 16 * 16;
  if (total > rt.counters.threadgroup_bytes) rt.counters.threadgroup_bytes = total;
  if (total > 32768) {
    rt.report->detail = (uint32_t)total;
    stop_running(THREADGROUP_MEMORY);
  }
  return array->base;
}

// clang's alignment check (UBSan) reports here.
struct ubsan_location { const char *file; uint32_t line, column; };
struct ubsan_mismatch { struct ubsan_location location; void *type; uint8_t log_alignment, kind; };
void __ubsan_handle_type_mismatch_v1_abort(struct ubsan_mismatch *data, uintptr_t pointer) {
  rt.report->site = (struct site){data->location.line, data->location.column};
  rt.report->address = pointer;
  rt.report->detail = 1u << data->log_alignment;
  stop_running(MISALIGNED);
}

// ---- faults ----
#if defined(__x86_64__) && defined(__linux__)
// Metal's integer division by zero does not trap: its value is unspecified. Skip the instruction and
// leave the poison of this run, so that a result that depends on it differs between two runs.
static int skip_division(ucontext_t *context) {
  greg_t *regs = context->uc_mcontext.gregs;
  const uint8_t *p = (const uint8_t *)regs[REG_RIP];
  if (*p == 0x66) p++;
  if ((*p & 0xf0) == 0x40) p++;
  if (*p != 0xf6 && *p != 0xf7) return 0;
  uint8_t modrm = p[1];
  if ((modrm >> 3 & 7) < 6) return 0;
  p += 2;
  if (modrm >> 6 != 3) {
    if ((modrm & 7) == 4) { if (modrm >> 6 == 0 && (*p & 7) == 5) p += 4; p++; }
    if (modrm >> 6 == 0 && (modrm & 7) == 5) p += 4;
    if (modrm >> 6 == 1) p += 1;
    if (modrm >> 6 == 2) p += 4;
  }
  regs[REG_RAX] = rt.launch.poison;
  regs[REG_RDX] = rt.launch.poison;
  regs[REG_RIP] = (greg_t)p;
  return 1;
}
#endif

static struct sigaction previous[3];
static const int signals[3] = {SIGSEGV, SIGBUS, SIGFPE};
static void on_fault(int number, siginfo_t *info, void *context) {
  if (!rt.running) {  // not ours: let the previous handler see it when the instruction runs again
    for (int i = 0; i < 3; i++) sigaction(signals[i], &previous[i], NULL);
    return;
  }
  ucontext_t *state = context;
#if defined(__x86_64__) && defined(__linux__)
  if (number == SIGFPE && skip_division(state)) return;
  rt.report->is_write = (state->uc_mcontext.gregs[REG_ERR] >> 1) & 1;
  rt.report->instruction = (uint64_t)state->uc_mcontext.gregs[REG_RIP];
#else
  (void)state;
  rt.report->is_write = -1;  // unknown
#endif
  rt.report->address = (uint64_t)(uintptr_t)info->si_addr;
  stop_running(number == SIGFPE ? ARITHMETIC_FAULT : MEMORY_FAULT);
}

// ---- what kernel.py calls ----
int msl_run(entry_point entry, const void *buffers, const struct launch *launch, struct report *report,
            struct counters *counters) {
  rt.entry = entry;
  rt.buffers = buffers;
  rt.launch = *launch;
  rt.report = report;
  memset(report, 0, sizeof *report);
  memset(&rt.counters, 0, sizeof rt.counters);
  rt.random = launch->seed;
  rt.spurious = (uint32_t)launch->seed;
  rt.lane_count = 0;
  rt.epoch++;
  rt.next_group = 0;
  rt.group_count = 1;
  for (int i = 0; i < 3; i++) {
    rt.thread.threads_per_grid[i] = launch->grid[i];
    rt.thread.dispatch_threads_per_threadgroup[i] = launch->threadgroup[i];
    rt.thread.threadgroups_per_grid[i] = (launch->grid[i] + launch->threadgroup[i] - 1) / launch->threadgroup[i];
    rt.group_count *= rt.thread.threadgroups_per_grid[i];
  }
  static uint8_t signal_stack[64 * 1024];
  stack_t own = {.ss_sp = signal_stack, .ss_size = sizeof signal_stack}, old;
  sigaltstack(&own, &old);
  struct sigaction action = {0};
  action.sa_sigaction = on_fault;
  // SA_NODEFER: the handler leaves by switching stacks, so the signal must not stay blocked.
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  for (int i = 0; i < 3; i++) sigaction(signals[i], &action, &previous[i]);

  // Stacks that an earlier run abandoned start afresh.
  rt.free_fibers = NULL;
  for (uint32_t i = 0; i < rt.fiber_count; i++) {
    prepare_fiber(rt.all_fibers[i]);
    rt.all_fibers[i]->next_free = rt.free_fibers;
    rt.free_fibers = rt.all_fibers[i];
  }
  if (begin_threadgroup()) {
    uint32_t first = rt.order[0] * LANES + rt.lane_order[0];
    place_thread(first);
    struct fiber *fiber = take_fiber();
    if (!fiber->stack_pointer) prepare_fiber(fiber);
    rt.lanes[first].fiber = fiber;
    rt.running = 1;
    msl_switch(&rt.main_stack_pointer, fiber->stack_pointer);
    rt.running = 0;
  }
  for (int i = 0; i < 3; i++) sigaction(signals[i], &previous[i], NULL);
  sigaltstack(&old, NULL);
  *counters = rt.counters;
  return report->outcome;
}

// Where a fault's address lies: 0 unknown, 1 the stack of a thread, 2 + id a threadgroup array.
int msl_locate(uint64_t address, int64_t *offset, uint64_t *bytes) {
  for (uint32_t i = 0; i < rt.fiber_count; i++) {
    uint64_t stack = (uint64_t)(uintptr_t)rt.all_fibers[i]->stack;
    if (address >= stack - STACK_GUARD && address < stack + STACK_BYTES) return 1;
  }
  for (int i = 0; i < MAX_ARRAYS; i++) {
    uint64_t region = (uint64_t)(uintptr_t)rt.arrays[i].region;
    if (!region || address < region || address >= region + rt.arrays[i].capacity + 2 * page_size()) continue;
    *offset = (int64_t)(address - (uint64_t)(uintptr_t)rt.arrays[i].base);
    *bytes = rt.arrays[i].bytes;
    return 2 + i;
  }
  return 0;
}

// A region between two inaccessible stretches. Guards are wide, so that an index that is far off is
// still caught and named.
uint8_t *msl_map(uint64_t capacity, uint64_t guard) {
  uint8_t *region = mmap(NULL, capacity + 2 * guard, PROT_NONE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
  if (region == MAP_FAILED) return NULL;
  if (capacity) mprotect(region + guard, capacity, PROT_READ | PROT_WRITE);
  return region;
}
int msl_make_read_only(uint8_t *region, uint64_t capacity, uint64_t guard) {
  return capacity ? mprotect(region + guard, capacity, PROT_READ) : 0;
}
int msl_unmap(uint8_t *region, uint64_t capacity, uint64_t guard) { return munmap(region, capacity + 2 * guard); }
