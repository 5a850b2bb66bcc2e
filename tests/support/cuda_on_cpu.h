// The functions of hybrid/ops/persistent/device.cuh on a CPU: every CUDA thread is a fiber.
//
// Order is random, by a seed, and hostile: a copy to shared memory arrives late, and poisons its target with
// NaN when it is issued, so that a read before it or a write too early shows in the result. Shuffles and
// barriers hold their threads until all have come. What no order can finish is reported as a deadlock.
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

typedef unsigned char u8;
typedef unsigned short bf16;
typedef unsigned int u32;
typedef unsigned long long u64;
struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) uint4 { u32 x, y, z, w; };
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline float rsqrtf(float x) { return 1.f / std::sqrt(x); }

#define DEVICE inline
#define KERNEL static void
#define CONSTANT const
#define SHARED_MEMORY(name) u8* name = running->block->memory

namespace emulator {
constexpr size_t STACK = 64 << 10;
struct Meeting { int came = 0; u32 times = 0; };
struct Warp { Meeting meeting; float values[2][32]; int mask[2]; };
struct Block {
  u8* memory;
  Meeting consumers, some;
  std::vector<Warp> warps;
};
struct Fiber {
  ucontext_t context;
  std::unique_ptr<u8[]> stack;
  Block* block;
  Warp* warp;
  int number, thread;
  bool over = false;
  bool (*ready)(Fiber*) = nullptr;  // null: runs whenever it is its turn
  const void* on = nullptr;
  u32 times = 0;
};
struct Copy { u8* to; const void* from; u32 bytes; u64* barrier; };
struct Store { float* to; float value; };
// In the 8 bytes of an mbarrier.
struct Mbarrier { uint16_t count, pending; uint32_t phase : 1, bytes : 31; };
static_assert(sizeof(Mbarrier) == 8, "");

static Fiber* running;
static ucontext_t scheduler;
static std::vector<Copy> copies;
static std::vector<Store> stores;  // not seen yet; each place sees its own in their order
static std::mt19937 chance;
static u64 clock;
static const char* broken;

inline void pause(bool (*ready)(Fiber*) = nullptr) {
  Fiber* self = running;
  self->ready = ready;
  swapcontext(&self->context, &scheduler);
}
inline void meet(Meeting& m, int threads) {
  u32 times = m.times;
  if (++m.came == threads) {
    m.came = 0;
    ++m.times;
    return;
  }
  running->on = &m;
  running->times = times;
  pause([](Fiber* f) { return ((const Meeting*)f->on)->times != f->times; });
}
inline void settle(Mbarrier* b) {
  if (!b->pending && !b->bytes) {
    b->phase ^= 1;
    b->pending = b->count;
  }
}
inline void require(bool held, const char* what) {
  if (!held && !broken) broken = what;
}
}  // namespace emulator
using emulator::running;
#define threadIdx (emulator::Place{running->thread})
#define blockIdx (emulator::Place{running->number})
namespace emulator { struct Place { int x; }; }

DEVICE void mbarrier_init(u64* b, u32 arrivals) {
  *(emulator::Mbarrier*)b = {(uint16_t)arrivals, (uint16_t)arrivals, 0, 0};
}
DEVICE void mbarrier_publish() {}
DEVICE void mbarrier_arrive(u64* b) {
  auto* m = (emulator::Mbarrier*)b;
  emulator::require(m->pending > 0, "one arrival too many at an mbarrier");
  --m->pending;
  emulator::settle(m);
}
DEVICE void mbarrier_expect(u64* b, u32 bytes) {
  ((emulator::Mbarrier*)b)->bytes += bytes;
  mbarrier_arrive(b);
}
DEVICE void mbarrier_wait(u64* b, u32 parity) {
  running->on = b;
  running->times = parity;
  auto passed = [](emulator::Fiber* f) { return ((const emulator::Mbarrier*)f->on)->phase != f->times; };
  if (!passed(running)) emulator::pause(passed);
}
enum Reuse { ONCE, BY_ALL_BLOCKS };
DEVICE void copy_async(void* to, const void* from, u32 bytes, u64* b, Reuse = ONCE) {
  u8* start = running->block->memory + HEADROOM;
  emulator::require((u8*)to >= start && (u8*)to + bytes <= start + RING, "a copy beyond the ring");
  emulator::require(!((uintptr_t)to % 16 || (uintptr_t)from % 16 || bytes % 16 || !bytes), "a copy not of 16 bytes");
  memset(to, 0xff, bytes);
  emulator::copies.push_back({(u8*)to, from, bytes, b});
}
DEVICE void sync_block() { emulator::meet(running->block->some, WARPS * 32 + 32); }
DEVICE void sync_consumers() { emulator::meet(running->block->consumers, WARPS * 32); }
template <int threads> DEVICE void sync_first() { emulator::meet(running->block->some, threads); }
DEVICE void sync_warp() { emulator::meet(running->warp->meeting, 32); }
DEVICE float exchange(float v, int lanes) {
  auto* warp = running->warp;
  int lane = running->thread % 32, side = warp->meeting.times & 1;
  if (!warp->meeting.came) warp->mask[side] = lanes;
  emulator::require(warp->mask[side] == lanes, "the lanes of a warp shuffle in different places");
  warp->values[side][lane] = v;
  sync_warp();
  return warp->values[side][lane ^ lanes];
}
DEVICE u32 load_fresh(const u32* p) {
  emulator::pause();
  return *p;
}
DEVICE void add_one(u32* p) { ++*p; }
DEVICE void store_system(u32* p, u32 v) { *p = v; }
DEVICE u64 nanoseconds() { return emulator::clock += 10000000; }
DEVICE uint4 load_weights(const bf16* p) { return *(const uint4*)p; }
DEVICE float4 load_fresh4(const float* p) { return *(const float4*)p; }
DEVICE float2 load_fresh2(const float* p) { return *(const float2*)p; }
DEVICE float load_fresh(const float* p) { return *p; }
DEVICE void store_fresh(float* p, float v) {
  for (auto& s : emulator::stores)
    if (s.to == p) *p = s.value, s.to = nullptr;
  emulator::stores.push_back({p, v});
}
DEVICE float quotient(float a, float b) { return a / b; }
DEVICE float power_of_two(float x) { return std::exp2(x); }
DEVICE float as_float(u32 bits) { float x; memcpy(&x, &bits, 4); return x; }
DEVICE u32 as_bits(float x) { u32 bits; memcpy(&bits, &x, 4); return bits; }

struct Step;
namespace emulator {
static const Step* step;
static void (*kernel)(const Step*);

inline void body() {
  kernel(step);
  running->over = true;
  swapcontext(&running->context, &scheduler);
}

// Runs `blocks` blocks; returns null, or what went wrong.
inline const char* launch(int blocks, unsigned seed) {
  constexpr int threads = WARPS * 32 + 32;
  chance.seed(seed);
  copies.clear();
  stores.clear();
  broken = nullptr;
  std::vector<Block> all(blocks);
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<std::unique_ptr<u8[]>> kept;
  for (int b = 0; b < blocks; ++b) {
    kept.emplace_back(new u8[HEADROOM + RING + 1024]);
    memset(kept.back().get(), 0xff, HEADROOM + RING + 1024);
    all[b].memory = (u8*)(((uintptr_t)kept.back().get() + 1023) & ~(uintptr_t)1023);
    all[b].warps.resize(WARPS + 1);
    for (int t = 0; t < threads; ++t) {
      fibers.emplace_back(new Fiber);
      Fiber& f = *fibers.back();
      f.stack.reset(new u8[STACK]);
      f.block = &all[b];
      f.warp = &all[b].warps[t / 32];
      f.number = b;
      f.thread = t;
      getcontext(&f.context);
      f.context.uc_stack.ss_sp = f.stack.get();
      f.context.uc_stack.ss_size = STACK;
      f.context.uc_link = nullptr;
      makecontext(&f.context, body, 0);
    }
  }
  // Warps in random order, and each of them runs until it waits.
  std::vector<int> order(blocks * (WARPS + 1));
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  for (size_t over = 0; over < fibers.size();) {
    bool moved = false;
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[chance() % i]);
    for (int w : order) {
      if (chance() % 4 == 0) continue;
      for (int again = 0; again < 64; ++again) {
        bool ran = false, spins = true;
        for (int t = 0; t < 32; ++t) {
          Fiber& f = *fibers[w * 32 + t];
          if (f.over || (f.ready && !f.ready(&f))) continue;
          running = &f;
          swapcontext(&scheduler, &f.context);
          over += f.over;
          ran = true;
          spins = spins && !f.over && !f.ready;
        }
        moved = moved || ran;
        if (!ran || spins) break;
      }
    }
    for (size_t i = 0; i < copies.size();) {
      if (chance() % 3 == 0) { ++i; continue; }
      Copy c = copies[i];
      copies[i] = copies.back();
      copies.pop_back();
      memcpy(c.to, c.from, c.bytes);
      auto* m = (Mbarrier*)c.barrier;
      m->bytes -= c.bytes;
      settle(m);
      moved = true;
    }
    for (size_t i = 0; i < stores.size();) {
      if (stores[i].to && chance() % 8 == 0) { ++i; continue; }
      if (stores[i].to) *stores[i].to = stores[i].value;
      stores[i] = stores.back();
      stores.pop_back();
    }
    if (broken) return broken;
    // A warp may have been passed over: only a second look tells.
    if (!moved && copies.empty() && stores.empty()) {
      bool any = false;
      for (auto& f : fibers) any = any || (!f->over && (!f->ready || f->ready(f.get())));
      if (!any) return "deadlock";
    }
  }
  for (auto& s : stores)
    if (s.to) *s.to = s.value;
  return nullptr;
}
}  // namespace emulator
