// One decode step of a dense decoder as one cooperative kernel: a thread block a multiprocessor.
//
// At batch 1 a token costs one read of the weights, so the step is a stream of rows. In each block one
// producer thread copies the block's rows, product after product, into a ring of shared memory; it waits for
// a free place and for nothing else, so memory keeps busy while the blocks wait for each other. All other
// warps share each row: a lane holds its part of the input vector in registers. Between two products stands
// a barrier of all blocks, one counter in device memory.
//
// Sizes are macros, set by sizes.py: GRID WARPS RING STAGES CHUNK FLYING HEADROOM LAYERS HIDDEN HEADS KV_HEADS DIM
// INNER VOCAB SLOTS PARTS MIN_PART FULL_PART EPS QKV_BIAS OUTPUT_BIAS UP_BIAS DOWN_BIAS LAYER_NORM GELU_MLP ROPE QK_NORM
// LEARNED WATCHDOG_NS TOKEN POSITION NO_BARRIER (1: no block waits, results are void; for measuring).
constexpr int THREADS = WARPS * 32;
constexpr int QUERIES = HEADS * DIM, KEYS = KV_HEADS * DIM, QKV = QUERIES + 2 * KEYS;
constexpr int FLUSH = 64;  // rows that are summed up together, across the warps

DEVICE constexpr int smaller(int a, int b) { return a < b ? a : b; }
DEVICE constexpr int larger(int a, int b) { return a > b ? a : b; }

struct Layer {
  const bf16 *qkv, *qkv_bias, *output, *output_bias, *up, *up_bias, *down, *down_bias;
  const bf16 *norm, *norm_bias, *mlp_norm, *mlp_norm_bias, *q_norm, *k_norm;
  bf16 *keys, *values;
};
struct Step {
  Layer layers[LAYERS];
  const bf16 *embedding, *learned, *norm, *norm_bias, *head;
  const float *cosine, *sine;
  const int* control;
  float *x, *qkv, *attended, *shares, *inner, *logits;
  u32* sync;   // arrivals so far; arrivals before this step; whether a step was given up; steps before
  u32* fault;  // of the host
};
struct Shared {
  u64 full[STAGES], empty[STAGES];
  u32 starts[STAGES];
  float squares[WARPS], sums[WARPS], weights[PARTS * HEADS];
  // Sums of rows by warp, in two halves; or of each warp the softmax of up to two heads.
  alignas(16) float partial[larger(2 * FLUSH * WARPS, smaller(HEADS / KV_HEADS, 2) * WARPS * (DIM + 2))];
};
static_assert(sizeof(Shared) <= HEADROOM && FLYING < STAGES, "HEADROOM or STAGES is too small");

// ---- who does what --------------------------------------------------------------------------------------

// How a product with rows of K elements is worked on.
template <int K, bool PAIRS> struct Shape {
  static constexpr int UNITS = K / 8;  // a lane takes 16 bytes at a time
  DEVICE static constexpr int groups(int n) { return n * 2 <= WARPS && THREADS / (n * 2) >= UNITS ? groups(n * 2) : n; }
  static constexpr int GROUPS = groups(1);  // groups of warps take alternate sets of four rows
  static constexpr int GROUP_THREADS = THREADS / GROUPS, GROUP_WARPS = WARPS / GROUPS;
  static constexpr int HELD = (UNITS + GROUP_THREADS - 1) / GROUP_THREADS;
  static constexpr int WIDE = K * (PAIRS ? 4 : 2);  // bytes of a row, or of a pair
  static constexpr int FIT = smaller(larger(CHUNK / WIDE, 1), PAIRS ? 16 : 32);
  static constexpr int TURN = PAIRS ? 2 * GROUPS : 4 * GROUPS;
  static constexpr int PER = FIT > TURN ? FIT / TURN * TURN : FIT;  // rows, or pairs, of a chunk
  static constexpr int ROWS = PAIRS ? 2 * PER : PER;
  static_assert(K % 8 == 0 && PER * WIDE <= RING && ROWS <= FLUSH, "a chunk does not fit");
};

struct Span { int first, last; };

// Contiguous rows for each block; the blocks behind the first `even` ones take `share` rows each. `turn`
// rotates the blocks, so that over a token all read the same bytes.
DEVICE Span deal(int rows, int turn, int even = GRID, int share = 0) {
  int i = (blockIdx.x + turn) % GRID, left = rows - (GRID - even) * share;
  if (i >= even) return Span{left + (i - even) * share, left + (i - even) * share + share};
  int each = left / even, more = left % even, first = i * each + min(i, more);
  return Span{first, first + each + (i < more)};
}
DEVICE int turn_of(int layer, int product) { return (layer * 4 + product) * 37 % GRID; }

// Attention: units of (kv head, part of the context), one a block; the output product evens out the bytes.
struct Plan { int position, parts, length, units, even, share; };

DEVICE Plan plan_of(int position) {
  Plan p;
  p.position = position;
  // More parts share the reading of the cache, but every block reads all of their results.
  p.parts = min(PARTS, max(min(4, max(1, (position + MIN_PART - 1) / MIN_PART)), position / FULL_PART));
  p.length = (position + p.parts - 1) / p.parts;
  p.units = KV_HEADS * p.parts;
  // A unit has the bytes of so many rows of the output product; who has no unit takes more rows.
  int rows = (p.length * DIM * 4 + QUERIES) / (QUERIES * 2);
  p.even = p.units < GRID ? p.units : GRID;
  p.share = p.even == GRID ? 0 : min((HIDDEN + p.units * rows + GRID - 1) / GRID, HIDDEN / (GRID - p.even));
  return p;
}
constexpr int TILE = CHUNK / (DIM * 4);  // positions of a chunk: keys, then values

// ---- the ring -------------------------------------------------------------------------------------------

// `at` counts bytes without end; a chunk that would cross the end of the ring begins at its start.
DEVICE u32 place(u32& at, u32 bytes) {
  u32 offset = at % RING;
  if (offset + bytes > RING) { at += RING - offset; offset = 0; }
  at += bytes;
  return offset;
}

struct Producer {
  Shared* shared;
  u8* ring;
  u32 at, head, tail, tail_at;

  // Waits until the chunk has room, and until the one FLYING before it has landed: more copies on their way
  // than memory needs to keep busy only hold up, in the same queue, what the blocks write for each other.
  // Returns where the chunk goes.
  DEVICE u8* begin(u32 bytes) {
    u32 offset = place(at, bytes);
    if (head >= FLYING) mbarrier_wait(&shared->full[(head - FLYING) % STAGES], (head - FLYING) / STAGES & 1);
    while (head - tail == STAGES || at - tail_at > RING) {
      mbarrier_wait(&shared->empty[tail % STAGES], tail / STAGES & 1);
      ++tail;
      tail_at = tail == head ? at - bytes : shared->starts[tail % STAGES];
    }
    shared->starts[head % STAGES] = at - bytes;
    mbarrier_expect(&shared->full[head % STAGES], bytes);
    return ring + offset;
  }
  DEVICE u64* barrier() { return &shared->full[head % STAGES]; }
};

struct Consumer {
  Shared* shared;
  const u8* ring;
  u32 at, chunk;

  DEVICE const u8* take(u32 bytes) {
    u32 offset = place(at, bytes);
    mbarrier_wait(&shared->full[chunk % STAGES], chunk / STAGES & 1);
    return ring + offset;
  }
  DEVICE void release() {
    sync_warp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(&shared->empty[chunk % STAGES]);
    ++chunk;
  }
};

// The weights of the norm before a product.
template <int K> DEVICE void produce_norm(Producer& p, const bf16* gain, const bf16* shift) {
  u8* to = p.begin(K * (LAYER_NORM ? 4 : 2));
  copy_async(to, gain, K * 2, p.barrier(), BY_ALL_BLOCKS);
  if (LAYER_NORM) copy_async(to + K * 2, shift, K * 2, p.barrier(), BY_ALL_BLOCKS);
  ++p.head;
}

template <int K> DEVICE void produce(Producer& p, const bf16* weight, Span rows) {
  typedef Shape<K, false> S;
  for (int r = rows.first; r < rows.last; r += S::PER) {
    u32 bytes = min(S::PER, rows.last - r) * K * 2;
    u8* to = p.begin(bytes);
    copy_async(to, weight + (u64)r * K, bytes, p.barrier());
    ++p.head;
  }
}

// Row i of the first half and row i of the second in one chunk.
template <int K, int HALF> DEVICE void produce_pairs(Producer& p, const bf16* weight, Span rows) {
  typedef Shape<K, true> S;
  for (int r = rows.first; r < rows.last; r += S::PER) {
    u32 bytes = min(S::PER, rows.last - r) * K * 2;
    u8* to = p.begin(2 * bytes);
    copy_async(to, weight + (u64)r * K, bytes, p.barrier());
    copy_async(to + bytes, weight + (u64)(HALF + r) * K, bytes, p.barrier());
    ++p.head;
  }
}

DEVICE void produce_cache(Producer& p, const Layer& layer, const Plan& plan, int turn) {
  for (int unit = (blockIdx.x + turn) % GRID; unit < plan.units; unit += GRID) {
    int head = unit / plan.parts, first = unit % plan.parts * plan.length;
    int last = min(plan.position, first + plan.length);
    for (int s = first; s < last; s += TILE) {
      u32 bytes = min(TILE, last - s) * DIM * 2;
      u64 from = ((u64)head * SLOTS + s) * DIM;
      u8* to = p.begin(2 * bytes);
      copy_async(to, layer.keys + from, bytes, p.barrier());
      copy_async(to + bytes, layer.values + from, bytes, p.barrier());
      ++p.head;
    }
  }
}

DEVICE void produce_step(const Step& s, Producer& p, const Plan& plan) {
  for (int i = 0; i < LAYERS; ++i) {
    const Layer& layer = s.layers[i];
    produce_norm<HIDDEN>(p, layer.norm, layer.norm_bias);
    produce<HIDDEN>(p, layer.qkv, deal(QKV, turn_of(i, 0)));
    produce_cache(p, layer, plan, turn_of(i, 1));
    produce<QUERIES>(p, layer.output, deal(HIDDEN, turn_of(i, 1), plan.even, plan.share));
    produce_norm<HIDDEN>(p, layer.mlp_norm, layer.mlp_norm_bias);
#if GELU_MLP
    produce<HIDDEN>(p, layer.up, deal(INNER, turn_of(i, 2)));
#else
    produce_pairs<HIDDEN, INNER>(p, layer.up, deal(INNER, turn_of(i, 2)));
#endif
    produce<INNER>(p, layer.down, deal(HIDDEN, turn_of(i, 3)));
  }
  produce_norm<HIDDEN>(p, s.norm, s.norm_bias);
  produce<HIDDEN>(p, s.head, deal(VOCAB, turn_of(LAYERS, 0)));
}

// ---- between blocks -------------------------------------------------------------------------------------

// A value that one block leaves for others carries, in its two lowest bits, how often its place was written.
// Every place is written each time, so a reader knows the value that it waits for from the one before it,
// whatever the order in which stores arrive. The barrier below therefore needs no fence (2.8 us beside the
// copies, measured): it makes a second look rare, and keeps a place from being written while it is still read.
constexpr u32 TAG = 3;

DEVICE float tagged(float v, u32 tag) { return as_float((as_bits(v) & ~TAG) | (tag & TAG)); }
DEVICE float untagged(float v) { return as_float(as_bits(v) & ~TAG); }  // the same in every step
DEVICE u32 differs(float v, u32 tag) { return (as_bits(v) ^ tag) & TAG; }

struct Grid {
  u32 *sync, *fault;
  u32 base, passed;
  bool broken;

  // Behind the last store of this block's first `threads` threads.
  template <int threads> DEVICE void arrive() {
    if (threads == THREADS) sync_consumers();
    else if (threadIdx.x < threads) sync_first<threads>();
    if (threadIdx.x == 0) add_one(sync);
  }
  DEVICE void give_up() {
    if (!load_fresh(sync + 2)) store_system(fault, passed);
    sync[2] = 1;
  }
  // A barrier that does not come is given up and reported; the step then ends without waiting any more.
  DEVICE void wait() {
#if NO_BARRIER
    return;
#endif
    ++passed;
    if (threadIdx.x == 0 && !broken) {
      u32 wanted = base + passed * GRID, spins = 0;
      u64 began = 0;
      while ((int)(load_fresh(sync) - wanted) < 0) {
        if (++spins % 1024) continue;
        u64 now = nanoseconds();
        if (!began) began = now;
        if (now - began > WATCHDOG_NS) {
          broken = true;
          give_up();
          break;
        }
      }
    }
    sync_consumers();
  }
  // Whether to look again for a value that was not there; a step that was given up is not waited for.
  DEVICE bool again(u32& looks) {
    if (NO_BARRIER || load_fresh(sync + 2)) return false;
    if (++looks < 1u << 20) return true;
    give_up();
    return false;
  }
};

// 8 values each from N places, `place(n)` null for none, all of the same tag.
template <int N, class Place> DEVICE void gather(Grid& grid, float* x, u32 tag, Place place) {
  u32 wrong, looks = 0;
  do {
    wrong = 0;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const float* p = place(n);
      float4 a = float4{0, 0, 0, 0}, b = a;
      if (p) { a = load_fresh4(p); b = load_fresh4(p + 4); }
      float* y = x + n * 8;
      y[0] = a.x; y[1] = a.y; y[2] = a.z; y[3] = a.w; y[4] = b.x; y[5] = b.y; y[6] = b.z; y[7] = b.w;
    }
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int e = 0; e < 8; ++e) wrong |= place(n) ? differs(x[n * 8 + e], tag) : 0;
  } while (wrong && grid.again(looks));
#pragma unroll
  for (int i = 0; i < N * 8; ++i) x[i] = untagged(x[i]);
}

// ---- arithmetic -----------------------------------------------------------------------------------------

DEVICE float low(u32 pair) { return as_float(pair << 16); }
DEVICE float high(u32 pair) { return as_float(pair & 0xffff0000u); }
DEVICE float wide(bf16 v) { return as_float((u32)v << 16); }
DEVICE bf16 narrow(float x) {  // to the nearest, ties to even
  u32 bits = as_bits(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (bf16)(bits >> 16 | 0x40);
  return (bf16)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}
DEVICE float dot8(uint4 a, const float* x, float sum) {
  sum = fmaf(low(a.x), x[0], sum); sum = fmaf(high(a.x), x[1], sum);
  sum = fmaf(low(a.y), x[2], sum); sum = fmaf(high(a.y), x[3], sum);
  sum = fmaf(low(a.z), x[4], sum); sum = fmaf(high(a.z), x[5], sum);
  sum = fmaf(low(a.w), x[6], sum); return fmaf(high(a.w), x[7], sum);
}
DEVICE void widen8(uint4 a, float* x) {
  x[0] = low(a.x); x[1] = high(a.x); x[2] = low(a.y); x[3] = high(a.y);
  x[4] = low(a.z); x[5] = high(a.z); x[6] = low(a.w); x[7] = high(a.w);
}
DEVICE uint4 narrow8(const float* x) {
  auto pair = [&](int i) { return (u32)narrow(x[i]) | (u32)narrow(x[i + 1]) << 16; };
  return uint4{pair(0), pair(2), pair(4), pair(6)};
}
// Sum over groups of `width` neighbouring lanes, left in each of them.
DEVICE float sum_lanes(float v, int width) {
  for (int d = width / 2; d; d >>= 1) v += exchange(v, d);
  return v;
}
// Sums R values a lane over the warp; the sum of row index_of<R>() ends in the lanes is_sum<R>() names.
template <int R> DEVICE float sum_rows(const float* p) {
  const int l = threadIdx.x % 32;
  float m;
  if (R == 1) {
    m = p[0];
    m += exchange(m, 16);
    m += exchange(m, 8);
  } else if (R == 2) {
    m = (l & 16 ? p[1] : p[0]) + exchange(l & 16 ? p[0] : p[1], 16);
    m += exchange(m, 8);
  } else {
    float a = (l & 16 ? p[2] : p[0]) + exchange(l & 16 ? p[0] : p[2], 16);
    float b = (l & 16 ? p[3] : p[1]) + exchange(l & 16 ? p[1] : p[3], 16);
    m = (l & 8 ? b : a) + exchange(l & 8 ? a : b, 8);
  }
  m += exchange(m, 4);
  m += exchange(m, 2);
  return m + exchange(m, 1);
}
template <int R> DEVICE int index_of() {
  const int l = threadIdx.x % 32;
  return R == 1 ? 0 : R == 2 ? l >> 4 : (l >> 4) * 2 + (l >> 3 & 1);
}
template <int R> DEVICE bool is_sum() { return threadIdx.x % (R == 1 ? 32 : R == 2 ? 16 : 8) == 0; }

// ---- a product ------------------------------------------------------------------------------------------

enum Norm { PLAIN, RMS, LAYER };
enum Kind { STORE, ADD, SWIGLU, GELU };

struct Product {
  const bf16* bias;
  const bf16 *token, *learned;  // rows of the embedding: what x is before the first layer; else null
  const float *in, *shares;
  float* out;
  Span rows;
  bool wait;
  u32 in_tag, out_tag;  // a residual has the tag before out_tag
};

DEVICE float embedded(const Product& p, int i) {
  return wide(p.token[i]) + (LEARNED ? wide(p.learned[i]) : 0.f);
}

// What each part of the context weighs in the attention of each head.
DEVICE void weigh(const Product& p, const Plan& plan, const float2* share, float* weights) {
  float best = -1e30f, total = 0, weight[PARTS];
#pragma unroll
  for (int i = 0; i < PARTS; ++i)
    if (i < plan.parts) best = fmaxf(best, untagged(share[i].x));
#pragma unroll
  for (int i = 0; i < PARTS; ++i) {
    weight[i] = i < plan.parts ? untagged(share[i].y) * power_of_two(untagged(share[i].x) - best) : 0.f;
    total += weight[i];
  }
#pragma unroll
  for (int i = 0; i < PARTS; ++i) weights[i * HEADS + threadIdx.x] = quotient(weight[i], total);
}

// The attention's result from its parts, which are each normalised.
template <class S> DEVICE void joined(Grid& grid, Shared& shared, const Product& p, const Plan& plan, float* x) {
  constexpr int BATCH = smaller(PARTS, 4);  // parts whose loads are on their way at once
  const int t = threadIdx.x, inside = t % S::GROUP_THREADS;
  float2 share[PARTS];
  auto look = [&] {
    u32 wrong = 0;
#pragma unroll
    for (int i = 0; i < PARTS; ++i)
      if (i < plan.parts) share[i] = load_fresh2(p.shares + (i * HEADS + t) * 2);
#pragma unroll
    for (int i = 0; i < PARTS; ++i)
      if (i < plan.parts) wrong |= differs(share[i].x, p.in_tag) | differs(share[i].y, p.in_tag);
    return wrong;
  };
  if (t < HEADS) {
    u32 looks = 0;
    while (look() && grid.again(looks));
    weigh(p, plan, share, shared.weights);
  }
  bool ready = false;
#pragma unroll
  for (int u = 0; u < S::HELD; ++u) {
    const int j = inside + u * S::GROUP_THREADS, head = j * 8 / DIM;
#pragma unroll
    for (int first = 0; first < PARTS; first += BATCH) {
      if (first >= plan.parts) break;
      float each[BATCH * 8];
      gather<BATCH>(grid, each, p.in_tag, [&](int i) {
        return j < S::UNITS && first + i < plan.parts ? p.in + (first + i) * QUERIES + j * 8 : nullptr;
      });
      if (!ready) { sync_consumers(); ready = true; }
#pragma unroll
      for (int i = 0; i < BATCH; ++i)
        if (j < S::UNITS && first + i < plan.parts) {
          const float weight = shared.weights[(first + i) * HEADS + head];
#pragma unroll
          for (int e = 0; e < 8; ++e) x[u * 8 + e] = fmaf(weight, each[i * 8 + e], first + i ? x[u * 8 + e] : 0.f);
        }
    }
  }
}
static_assert(HEADS <= THREADS, "a thread a head");

// Over the warps that hold one copy of x.
template <class S> DEVICE float sum_group(float v, float* shared) {
  const int warp = threadIdx.x / 32;
  v = sum_lanes(v, 32);
  if (threadIdx.x % 32 == 0) shared[warp] = v;
  sync_consumers();
  float total = 0;
  for (int i = 0; i < S::GROUP_WARPS; ++i) total += shared[warp / S::GROUP_WARPS * S::GROUP_WARPS + i];
  return total;
}

template <int K, int NORM, int KIND, bool BIAS, bool JOIN>
DEVICE void product(Grid& grid, Consumer& c, const Product& p, const Plan& plan) {
  typedef Shape<K, KIND == SWIGLU> S;
  constexpr int R = smaller(S::ROWS, 4);
  const int t = threadIdx.x, warp = t / 32, group = t / S::GROUP_THREADS, inside = t % S::GROUP_THREADS;
  Shared& shared = *c.shared;
  // What does not depend on other blocks, before the barrier.
  uint4 gain[S::HELD], shift[S::HELD];
  if (NORM != PLAIN) {
    const u8* norm = c.take(K * (NORM == LAYER ? 4 : 2));
#pragma unroll
    for (int u = 0; u < S::HELD; ++u) {
      int j = inside + u * S::GROUP_THREADS;
      gain[u] = shift[u] = uint4{0, 0, 0, 0};
      if (j < S::UNITS) gain[u] = *(const uint4*)(norm + j * 16);
      if (NORM == LAYER && j < S::UNITS) shift[u] = *(const uint4*)(norm + K * 2 + j * 16);
    }
    c.release();
  }
  auto bias = [&](int row) { return BIAS && row < p.rows.last ? wide(p.bias[row]) : 0.f; };
  int first = p.rows.first, done = 0;
  float aside = KIND != SWIGLU && t < FLUSH ? bias(first + t) : 0.f;
  if (p.wait) grid.wait();
  // Of the row that this thread will store next; its bias is there already.
  auto residual = [&](int row) {
    if (KIND != ADD || row >= p.rows.last) return 0.f;
    if (p.token) return embedded(p, row);
    u32 looks = 0;
    float v = load_fresh(p.out + row);
    while (differs(v, p.out_tag - 1) && grid.again(looks)) v = load_fresh(p.out + row);
    return untagged(v);
  };
  float x[S::HELD * 8];
#pragma unroll
  for (int i = 0; i < S::HELD * 8; ++i) x[i] = 0;
  if (JOIN && plan.parts > 1) {
    joined<S>(grid, shared, p, plan, x);
  } else if (KIND != ADD && p.token) {
#pragma unroll
    for (int u = 0; u < S::HELD; ++u) {
      int j = inside + u * S::GROUP_THREADS;
      float more[8];
      if (j < S::UNITS) widen8(load_weights(p.token + j * 8), x + u * 8);
      if (LEARNED && j < S::UNITS) {
        widen8(load_weights(p.learned + j * 8), more);
#pragma unroll
        for (int e = 0; e < 8; ++e) x[u * 8 + e] += more[e];
      }
    }
  } else {
    gather<S::HELD>(grid, x, p.in_tag, [&](int u) {
      int j = inside + u * S::GROUP_THREADS;
      return j < S::UNITS ? p.in + j * 8 : nullptr;
    });
  }
  if (t < FLUSH) aside += residual(first + t);
  if (NORM == RMS) {  // a scale, which the sums take at the end
    float squares = 0;
#pragma unroll
    for (int i = 0; i < S::HELD * 8; ++i) squares = fmaf(x[i], x[i], squares);
    squares = sum_lanes(squares, 32);
    if (t % 32 == 0) shared.squares[warp] = squares;
  } else if (NORM == LAYER) {
    float sum = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < S::HELD * 8; ++i) sum += x[i];
    float mean = sum_group<S>(sum, shared.sums) / K;
#pragma unroll
    for (int u = 0; u < S::HELD; ++u)
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        x[u * 8 + e] = inside + u * S::GROUP_THREADS < S::UNITS ? x[u * 8 + e] - mean : 0.f;
        squares = fmaf(x[u * 8 + e], x[u * 8 + e], squares);
      }
    float scale = rsqrtf(sum_group<S>(squares, shared.squares) / K + EPS);
#pragma unroll
    for (int i = 0; i < S::HELD * 8; ++i) x[i] *= scale;
  }
  if (NORM != PLAIN) {
#pragma unroll
    for (int u = 0; u < S::HELD; ++u) {
      float g[8], s[8];
      widen8(gain[u], g);
      widen8(shift[u], s);
#pragma unroll
      for (int e = 0; e < 8; ++e) x[u * 8 + e] = NORM == LAYER ? fmaf(x[u * 8 + e], g[e], s[e]) : x[u * 8 + e] * g[e];
    }
  }
  float* partial = shared.partial;
  for (int r = p.rows.first; r < p.rows.last; r += S::PER) {
    const int n = min(S::PER, p.rows.last - r), rows = KIND == SWIGLU ? 2 * n : n;
    const u8* base = c.take(rows * K * 2);
    for (int k = group * R; k < rows; k += R * S::GROUPS) {
      float sums[4] = {0, 0, 0, 0};
#pragma unroll
      for (int i = 0; i < R; ++i)
        if (k + i < rows)
#pragma unroll
          for (int u = 0; u < S::HELD; ++u) {
            int j = inside + u * S::GROUP_THREADS;
            if (j < S::UNITS) sums[i] = dot8(*(const uint4*)(base + (k + i) * K * 2 + j * 16), x + u * 8, sums[i]);
          }
      float sum = sum_rows<R>(sums);
      int row = k + index_of<R>();
      if (is_sum<R>() && row < rows) {
        int at = KIND != SWIGLU ? row : row < n ? 2 * row : 2 * (row - n) + 1;
        partial[(done + at) * S::GROUP_WARPS + warp % S::GROUP_WARPS] = sum;
      }
    }
    c.release();
    done += rows;
    if (done + S::ROWS <= FLUSH && r + S::PER < p.rows.last) continue;
    sync_consumers();
    int outputs = KIND == SWIGLU ? done / 2 : done;
    if (t < outputs) {
      float scale = 1, y = 0;
      if (NORM == RMS) {
        float squares = 0;
        for (int i = 0; i < S::GROUP_WARPS; ++i) squares += shared.squares[i];
        scale = rsqrtf(squares / K + EPS);
      }
      auto whole = [&](int row) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < S::GROUP_WARPS; ++i) sum += partial[row * S::GROUP_WARPS + i];
        return sum * scale;
      };
      if (KIND == SWIGLU) {
        float gate = whole(2 * t), up = whole(2 * t + 1);
        if (BIAS) { gate += wide(p.bias[first + t]); up += wide(p.bias[INNER + first + t]); }
        y = quotient(gate, 1.f + power_of_two(-1.4426950408889634f * gate)) * up;
      } else {
        y = whole(t) + aside;
        if (KIND == GELU) {
          float z = 1.5957691216057308f * (y + 0.044715f * y * y * y);
          y = quotient(y, 1.f + power_of_two(-1.4426950408889634f * z));
        }
      }
      store_fresh(p.out + first + t, tagged(y, p.out_tag));
    }
    // The next sums go to the other half; the barrier before it is read again ends this reading.
    partial = partial == shared.partial ? shared.partial + FLUSH * S::GROUP_WARPS : shared.partial;
    first += outputs;
    done = 0;
    if (KIND != SWIGLU && r + S::PER < p.rows.last && t < FLUSH) aside = bias(first + t) + residual(first + t);
  }
}

// ---- attention ------------------------------------------------------------------------------------------

// Query heads of a kv head: up to two a warp (four do not fit the registers); more are shared out to
// classes of warps.
constexpr int GROUP = HEADS / KV_HEADS;
constexpr int CLASSES = GROUP <= 2 ? 1 : GROUP <= 4 ? 2 : GROUP <= 8 ? 4 : 8;
constexpr int MINE = (GROUP + CLASSES - 1) / CLASSES;
constexpr int CLASS_WARPS = WARPS / CLASSES;
constexpr int LANES = DIM / 8;         // of a row of keys or values
constexpr int SETS = 32 / LANES;       // rows that a warp reads at once
constexpr int AT_ONCE = CLASS_WARPS * SETS;
static_assert(GROUP <= 16 && WARPS % CLASSES == 0 && 32 % LANES == 0 && LANES >= 2, "attention: heads");

struct Rotation { float cosine[8], sine[8]; };

// 8 elements of a query or key head, `x`, normalised and rotated; `y` are those that they turn with.
DEVICE void turned8(float* x, float* y, const bf16* gain, const Rotation& turn) {
  const int lane = threadIdx.x % LANES, other = lane ^ (LANES / 2);
  if (QK_NORM) {
    float squares = 0, g[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) squares = fmaf(x[e], x[e], squares);
    const float scale = rsqrtf(sum_lanes(squares, LANES) / DIM + EPS);
    widen8(load_weights(gain + lane * 8), g);
#pragma unroll
    for (int e = 0; e < 8; ++e) x[e] *= scale * g[e];
    widen8(load_weights(gain + other * 8), g);
#pragma unroll
    for (int e = 0; e < 8; ++e) y[e] *= scale * g[e];
  }
  if (ROPE)
#pragma unroll
    for (int e = 0; e < 8; ++e)
      x[e] = x[e] * turn.cosine[e] + (lane < LANES / 2 ? -y[e] : y[e]) * turn.sine[e];
}

// The softmax so far of some positions: highest score, sum of weights, weighted values.
struct Softmax { float best, total, values[8]; };

DEVICE void join(Softmax& a, float best, float total, const float* values) {
  float top = fmaxf(a.best, best), mine = power_of_two(a.best - top), theirs = power_of_two(best - top);
  a.best = top;
  a.total = a.total * mine + total * theirs;
#pragma unroll
  for (int e = 0; e < 8; ++e) a.values[e] = a.values[e] * mine + values[e] * theirs;
}

DEVICE void store_part(const Step& s, u32 tag, int part, int head, int d, float best, float total, float value) {
  store_fresh(s.attended + part * QUERIES + head * DIM + d, tagged(value, tag));
  if (d) return;
  store_fresh(s.shares + (part * HEADS + head) * 2, tagged(best, tag));
  store_fresh(s.shares + (part * HEADS + head) * 2 + 1, tagged(total, tag));
}

DEVICE void attend(const Step& s, Grid& grid, Consumer& c, const Layer& layer, const Plan& plan, int turn, u32 tag) {
  const int t = threadIdx.x, warp = t / 32, lane = t % LANES, set = t % 32 / LANES;
  const int kind = warp / CLASS_WARPS, base = warp % CLASS_WARPS * SETS, unit0 = (blockIdx.x + turn) % GRID;
  Shared& shared = *c.shared;
  Rotation rotation;
  if (ROPE && unit0 < plan.units) {
    const int half = plan.position * (DIM / 2) + lane % (LANES / 2) * 8;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      rotation.cosine[e] = s.cosine[half + e];
      rotation.sine[e] = s.sine[half + e];
    }
  }
  grid.wait();
  for (int unit = unit0; unit < plan.units; unit += GRID) {
    const int head = unit / plan.parts, part = unit % plan.parts, first = part * plan.length;
    const int last = min(plan.position, first + plan.length);
    const float scale = rsqrtf((float)DIM) * 1.4426950408889634f;  // scores are powers of two
    const bool newest = part == plan.parts - 1 && base == 0;  // these warps have the token itself
    float raw[MINE * 2 + 3][8], query[MINE][8];
    Softmax soft[MINE];
    gather<MINE * 2 + 3>(grid, raw[0], tag, [&](int n) -> const float* {
      const int side = n % 2 ? lane ^ (LANES / 2) : lane;
      if (n < MINE * 2) return s.qkv + (head * GROUP + min(kind * MINE + n / 2, GROUP - 1)) * DIM + side * 8;
      if (!newest) return nullptr;
      return s.qkv + QUERIES + (n == MINE * 2 + 2 ? KEYS : 0) + head * DIM + (n == MINE * 2 + 1 ? lane ^ (LANES / 2) : lane) * 8;
    });
#pragma unroll
    for (int g = 0; g < MINE; ++g) {
      turned8(raw[g * 2], raw[g * 2 + 1], layer.q_norm, rotation);
      soft[g].best = -1e30f;
      soft[g].total = 0;
#pragma unroll
      for (int e = 0; e < 8; ++e) { query[g][e] = raw[g * 2][e] * scale; soft[g].values[e] = 0; }
    }
    if (newest) {  // and they write it into the cache
      float *key = raw[MINE * 2], *value = raw[MINE * 2 + 2];
      turned8(key, raw[MINE * 2 + 1], layer.k_norm, rotation);
      uint4 k = narrow8(key), v = narrow8(value);
      widen8(k, key);
      widen8(v, value);
      if (warp == 0 && set == 0 && plan.position < SLOTS) {
        const u64 to = ((u64)head * SLOTS + plan.position) * DIM + lane * 8;
        *(uint4*)(layer.keys + to) = k;
        *(uint4*)(layer.values + to) = v;
      }
#pragma unroll
      for (int g = 0; g < MINE; ++g) {
        float score = 0;
#pragma unroll
        for (int e = 0; e < 8; ++e) score = fmaf(key[e], query[g][e], score);
        score = sum_lanes(score, LANES);
        if (set == 0) {
          soft[g].best = score;
          soft[g].total = 1;
#pragma unroll
          for (int e = 0; e < 8; ++e) soft[g].values[e] = value[e];
        }
      }
    }
    for (int at = first; at < last; at += TILE) {
      const int n = min(TILE, last - at);
      const u8* keys = c.take(n * DIM * 4) + (base + set) * DIM * 2 + lane * 16;
      const u8* values = keys + n * DIM * 2;
      for (int r = 0; r < n; r += 2 * AT_ONCE) {
        float score[2][MINE], value[2][8];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = r + i * AT_ONCE;
          const bool there = row + base + set < n;
          uint4 key = uint4{0, 0, 0, 0}, v = uint4{0, 0, 0, 0};
          if (there) {
            key = *(const uint4*)(keys + row * DIM * 2);
            v = *(const uint4*)(values + row * DIM * 2);
          }
          widen8(v, value[i]);
#pragma unroll
          for (int g = 0; g < MINE; ++g) {
            float sum = sum_lanes(dot8(key, query[g], 0.f), LANES);
            score[i][g] = there ? sum : as_float(0xff800000u);  // no weight
          }
        }
#pragma unroll
        for (int g = 0; g < MINE; ++g) {
          Softmax& a = soft[g];
          float top = fmaxf(a.best, fmaxf(score[0][g], score[1][g]));
          float old = power_of_two(a.best - top);
          float p0 = power_of_two(score[0][g] - top), p1 = power_of_two(score[1][g] - top);
          a.best = top;
          a.total = a.total * old + p0 + p1;
#pragma unroll
          for (int e = 0; e < 8; ++e) a.values[e] = fmaf(p1, value[1][e], fmaf(p0, value[0][e], a.values[e] * old));
        }
      }
      c.release();
    }
    // The rows of a warp, then the warps.
    if (unit != unit0) sync_consumers();
#pragma unroll
    for (int g = 0; g < MINE; ++g) {
#pragma unroll
      for (int d = LANES; d < 32; d <<= 1) {
        float best = exchange(soft[g].best, d), total = exchange(soft[g].total, d), values[8];
#pragma unroll
        for (int e = 0; e < 8; ++e) values[e] = exchange(soft[g].values[e], d);
        join(soft[g], best, total, values);
      }
      float* mine = shared.partial + (g * WARPS + warp) * (DIM + 2);
      if (set == 0) {
#pragma unroll
        for (int e = 0; e < 8; ++e) mine[2 + lane * 8 + e] = soft[g].values[e];
        if (lane == 0) { mine[0] = soft[g].best; mine[1] = soft[g].total; }
      }
    }
    sync_consumers();
    for (int i = t; i < GROUP * DIM; i += THREADS) {
      const int h = i / DIM, d = i % DIM, whole = head * GROUP + h;
      const float* theirs = shared.partial + (h % MINE * WARPS + h / MINE * CLASS_WARPS) * (DIM + 2);
      float best = -1e30f, total = 0, value = 0;
#pragma unroll
      for (int w = 0; w < CLASS_WARPS; ++w) best = fmaxf(best, theirs[w * (DIM + 2)]);
#pragma unroll
      for (int w = 0; w < CLASS_WARPS; ++w) {
        float weight = power_of_two(theirs[w * (DIM + 2)] - best);
        total = fmaf(weight, theirs[w * (DIM + 2) + 1], total);
        value = fmaf(weight, theirs[w * (DIM + 2) + 2 + d], value);
      }
      store_part(s, tag, part, whole, d, best, total, quotient(value, total));
    }
  }
  // A part that the context does not have yet is written all the same: see tagged().
  for (int unit = unit0; unit < KV_HEADS * PARTS; unit += GRID)
    if (unit >= plan.units)
      for (int i = t; i < GROUP * DIM; i += THREADS) {
        const int rest = PARTS - plan.parts, left = unit - plan.units;
        store_part(s, tag, plan.parts + left % rest, left / rest * GROUP + i / DIM, i % DIM, -1e30f, 0, 0);
      }
}

// ---- the step -------------------------------------------------------------------------------------------

constexpr int NORMED = LAYER_NORM ? LAYER : RMS;

KERNEL decode_step(CONSTANT Step s) {
  SHARED_MEMORY(memory);
  Shared* shared = (Shared*)memory;
  u8* ring = memory + HEADROOM;
  if (s.sync[2]) return;  // an earlier step was given up
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      mbarrier_init(&shared->full[i], 1);
      mbarrier_init(&shared->empty[i], WARPS);
    }
    mbarrier_publish();
  }
  sync_block();
  const int token = s.control[TOKEN];
  const Plan plan = plan_of(s.control[POSITION]);
  if (threadIdx.x >= THREADS) {
    if (threadIdx.x == THREADS) {
      Producer p{shared, ring, 0, 0, 0, 0};
      produce_step(s, p, plan);
    }
    return;
  }
  Consumer c{shared, ring, 0, 0};
  Grid grid{s.sync, s.fault, s.sync[1], 0, false};
  const u32 steps = s.sync[3];
  const bf16* row = s.embedding + (u64)token * HIDDEN;
  const bf16* learned = LEARNED ? s.learned + (u64)min(plan.position, LEARNED - 1) * HIDDEN : row;
  for (int i = 0; i < LAYERS; ++i) {
    const Layer& layer = s.layers[i];
    const bf16* start = i ? nullptr : row;
    // How often q, k, v, the attention and the inner values were written before; x is written twice.
    const u32 tag = steps * LAYERS + i;
    product<HIDDEN, NORMED, STORE, QKV_BIAS, false>(grid, c, Product{layer.qkv_bias, start, learned,
        s.x, nullptr, s.qkv, deal(QKV, turn_of(i, 0)), i > 0, 2 * tag - 1, tag}, plan);
    grid.arrive<FLUSH>();
    attend(s, grid, c, layer, plan, turn_of(i, 1), tag);
    grid.arrive<THREADS>();
    product<QUERIES, PLAIN, ADD, OUTPUT_BIAS, true>(grid, c, Product{layer.output_bias, start, learned,
        s.attended, s.shares, s.x, deal(HIDDEN, turn_of(i, 1), plan.even, plan.share), true, tag, 2 * tag}, plan);
    grid.arrive<FLUSH>();
    product<HIDDEN, NORMED, GELU_MLP ? GELU : SWIGLU, UP_BIAS, false>(grid, c, Product{layer.up_bias, nullptr, nullptr,
        s.x, nullptr, s.inner, deal(INNER, turn_of(i, 2)), true, 2 * tag, tag}, plan);
    grid.arrive<FLUSH>();
    product<INNER, PLAIN, ADD, DOWN_BIAS, false>(grid, c, Product{layer.down_bias, nullptr, nullptr,
        s.inner, nullptr, s.x, deal(HIDDEN, turn_of(i, 3)), true, tag, 2 * tag + 1}, plan);
    grid.arrive<FLUSH>();
  }
  product<HIDDEN, NORMED, STORE, false, false>(grid, c, Product{nullptr, nullptr, nullptr,
      s.x, nullptr, s.logits, deal(VOCAB, turn_of(LAYERS, 0)), true, 2 * (steps + 1) * LAYERS - 1, 0}, plan);
  // All blocks have read the old values: they passed a barrier since.
  if (blockIdx.x == 0 && threadIdx.x == 0 && !grid.broken) {
    s.sync[1] = grid.base + grid.passed * GRID;
    s.sync[3] = steps + 1;
  }
}
