// What the step needs of a Hopper GPU, one instruction a function. tests/support/cuda_on_cpu.h has the
// same names for a CPU, so that the step itself is tested without a GPU.
// Source of the instructions: NVIDIA, PTX ISA 8.0 (mbarrier, cp.async.bulk, bar, ld.relaxed, red).
typedef unsigned char u8;
typedef unsigned short bf16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define DEVICE __device__ __forceinline__
#define KERNEL extern "C" __global__ void __launch_bounds__(WARPS * 32 + 32, 1)
#define CONSTANT const __grid_constant__
#define SHARED_MEMORY(name) extern __shared__ __align__(1024) u8 name[]

DEVICE u32 in_shared(const void* p) { return (u32)__cvta_generic_to_shared(p); }

DEVICE void mbarrier_init(u64* b, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(in_shared(b)), "r"(arrivals) : "memory");
}
// Initialised barriers become visible to the copy engine.
DEVICE void mbarrier_publish() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void mbarrier_expect(u64* b, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(in_shared(b)), "r"(bytes) : "memory");
}
DEVICE void mbarrier_arrive(u64* b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(in_shared(b)) : "memory");
}
DEVICE void mbarrier_wait(u64* b, u32 parity) {
  u32 done;
  do {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
        : "=r"(done) : "r"(in_shared(b)), "r"(parity) : "memory");
  } while (!done);
}
// Device to shared memory, counted by the barrier. What is read once leaves L2 first.
enum Reuse : u64 { ONCE = 0x12F0000000000000ull, BY_ALL_BLOCKS = 0x1000000000000000ull };
DEVICE void copy_async(void* to, const void* from, u32 bytes, u64* b, Reuse reuse = ONCE) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
      ::"r"(in_shared(to)), "l"(from), "r"(bytes), "r"(in_shared(b)), "l"((u64)reuse) : "memory");
}
DEVICE void sync_block() { __syncthreads(); }
DEVICE void sync_warp() { __syncwarp(); }
// Of the consumer warps only, and of the first `threads` threads only.
DEVICE void sync_consumers() { asm volatile("bar.sync 1, %0;" ::"n"(WARPS * 32) : "memory"); }
template <int threads> DEVICE void sync_first() { asm volatile("bar.sync 2, %0;" ::"n"(threads) : "memory"); }
DEVICE float exchange(float v, int lanes) { return __shfl_xor_sync(0xffffffffu, v, lanes); }

// What blocks write for each other: single values, seen by all, in no order among each other.
DEVICE u32 load_fresh(const u32* p) {
  u32 v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
DEVICE float load_fresh(const float* p) { return __uint_as_float(load_fresh((const u32*)p)); }
DEVICE float2 load_fresh2(const float* p) {
  float2 v;
  asm volatile("ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(p) : "memory");
  return v;
}
DEVICE float4 load_fresh4(const float* p) {
  float4 v;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p) : "memory");
  return v;
}
DEVICE void store_fresh(float* p, float v) {
  asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(p), "f"(v) : "memory");
}
DEVICE void add_one(u32* p) {
  asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(p) : "memory");
}
DEVICE void store_system(u32* p, u32 v) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
DEVICE u64 nanoseconds() {
  u64 t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}
// Never written while a step runs.
DEVICE uint4 load_weights(const bf16* p) { return __ldg((const uint4*)p); }
DEVICE float quotient(float a, float b) { return __fdividef(a, b); }
DEVICE float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEVICE float as_float(u32 bits) { return __uint_as_float(bits); }
DEVICE u32 as_bits(float x) { return __float_as_uint(x); }
