// Narrows one engine step of routed experts on the device: `int32 [tokens, layers, top_k]` becomes packed `u8` or `u16`
// rows of the same order, ids per layer and expert are counted, and what no gate can have chosen is counted too.
//
// Compiled for one model, at run time by NVRTC (see compile.rs), in tests also by a C++ compiler (see tests/shim.h):
//   TOP_K     slots per layer
//   ID_BYTES  1 or 2
//   KERNEL    name of the function
//
// A thread takes the `top_k` ids of one layer of one position, so all that is said of them is said in its registers, and
// a warp reads a contiguous piece: `group` (a power of two) neighbouring layers of neighbouring positions. A thread stays
// with its layer. blockIdx.y is the group of layers; blocks along x and the threads' rows share the positions.
//
// An id is narrowed as the engine narrows it, by its low bits, in range or not; only ids in range are counted as
// chosen. `faults` are three per layer: ids out of range, rows with an id twice, rows of zeros alone. The last two are
// not asked of `top_k` 1, and nothing is asked of a layer without a gate.

#if ID_BYTES == 1
typedef unsigned char Id;
#else
typedef unsigned short Id;
#endif

#define ROW_BYTES (TOP_K * ID_BYTES)

// Rows that a thread has under way at once, so that enough bytes are in flight to fill the memory's latency.
#if TOP_K <= 4
#define DEPTH 4
#elif TOP_K <= 8
#define DEPTH 2
#else
#define DEPTH 1
#endif

#if TOP_K > 1
#define MANY 1
#else
#define MANY 0
#endif

extern "C" __global__ void __launch_bounds__(512)
    KERNEL(const int *__restrict__ ids, Id *__restrict__ rows, unsigned *__restrict__ faults,
           unsigned *__restrict__ counts, const unsigned char *__restrict__ gates, long long tokens, int layers,
           int experts, int group, int vector, int in_shared)
{
    SHARED_COUNTS(bins);
    (void)vector; // odd rows are read id by id

    const int within = (int)threadIdx.x & (group - 1);
    const int layer = (int)blockIdx.y * group + within;
    const long long step = (long long)(blockDim.x / group) * gridDim.x;
    const bool counted = counts != nullptr;
    const bool binned = counted && in_shared;

    if (binned) {
        for (int bin = threadIdx.x; bin < group * experts; bin += blockDim.x) {
            bins[bin] = 0;
        }
        __syncthreads();
    }

    if (layer < layers) {
        const bool gate = gates[layer] != 0;
        unsigned *const chosen = binned ? bins + within * experts : counts + (long long)layer * experts;
        unsigned out_of_range = 0, repeated = 0, all_zero = 0;

        for (long long first = (long long)blockIdx.x * (blockDim.x / group) + threadIdx.x / group; first < tokens;
             first += step * DEPTH) {
            int id[DEPTH][TOP_K];

#pragma unroll
            for (int row = 0; row < DEPTH; row++) {
                const long long token = first + row * step;
                if (token < tokens) {
                    const int *const from = ids + (token * layers + layer) * TOP_K;
#if TOP_K % 4 == 0
                    if (vector >= 4) {
#pragma unroll
                        for (int slot = 0; slot < TOP_K; slot += 4) {
                            const int4 four = *(const int4 *)(from + slot);
                            id[row][slot] = four.x;
                            id[row][slot + 1] = four.y;
                            id[row][slot + 2] = four.z;
                            id[row][slot + 3] = four.w;
                        }
                        continue;
                    }
#endif
#if TOP_K % 2 == 0
                    if (vector >= 2) {
#pragma unroll
                        for (int slot = 0; slot < TOP_K; slot += 2) {
                            const int2 two = *(const int2 *)(from + slot);
                            id[row][slot] = two.x;
                            id[row][slot + 1] = two.y;
                        }
                        continue;
                    }
#endif
#pragma unroll
                    for (int slot = 0; slot < TOP_K; slot++) {
                        id[row][slot] = from[slot];
                    }
                }
            }

#pragma unroll
            for (int row = 0; row < DEPTH; row++) {
                const long long token = first + row * step;
                if (token >= tokens) {
                    continue;
                }
                Id *const to = rows + (token * layers + layer) * TOP_K;
#if ROW_BYTES % 4 == 0
                unsigned word[ROW_BYTES / 4];
#pragma unroll
                for (int w = 0; w < ROW_BYTES / 4; w++) {
#if ID_BYTES == 1
                    word[w] = (id[row][4 * w] & 0xff) | (id[row][4 * w + 1] & 0xff) << 8 |
                              (id[row][4 * w + 2] & 0xff) << 16 | (unsigned)(id[row][4 * w + 3] & 0xff) << 24;
#else
                    word[w] = (id[row][2 * w] & 0xffff) | (unsigned)(id[row][2 * w + 1] & 0xffff) << 16;
#endif
                }
#if ROW_BYTES % 16 == 0
#pragma unroll
                for (int w = 0; w < ROW_BYTES / 4; w += 4) {
                    *(uint4 *)((unsigned *)to + w) = make_uint4(word[w], word[w + 1], word[w + 2], word[w + 3]);
                }
#elif ROW_BYTES % 8 == 0
#pragma unroll
                for (int w = 0; w < ROW_BYTES / 4; w += 2) {
                    *(uint2 *)((unsigned *)to + w) = make_uint2(word[w], word[w + 1]);
                }
#else
#pragma unroll
                for (int w = 0; w < ROW_BYTES / 4; w++) {
                    ((unsigned *)to)[w] = word[w];
                }
#endif
#elif ROW_BYTES % 2 == 0 && ID_BYTES == 1
#pragma unroll
                for (int slot = 0; slot < TOP_K; slot += 2) {
                    *(unsigned short *)(to + slot) =
                        (unsigned short)((id[row][slot] & 0xff) | (id[row][slot + 1] & 0xff) << 8);
                }
#else
#pragma unroll
                for (int slot = 0; slot < TOP_K; slot++) {
                    to[slot] = (Id)id[row][slot];
                }
#endif

                if (!gate) {
                    continue;
                }
                int any = 0;
                bool twice = false;
#pragma unroll
                for (int slot = 0; slot < TOP_K; slot++) {
                    const bool in_range = (unsigned)id[row][slot] < (unsigned)experts;
                    out_of_range += !in_range;
                    any |= id[row][slot];
#pragma unroll
                    for (int other = 0; other < slot; other++) {
                        twice |= in_range & (id[row][other] == id[row][slot]);
                    }
                    if (counted & in_range) {
                        atomicAdd(chosen + id[row][slot], 1u);
                    }
                }
                all_zero += MANY & (any == 0);
                repeated += MANY & twice & (any != 0);
            }
        }
        if (out_of_range) {
            atomicAdd(faults + layer * 3, out_of_range);
        }
        if (repeated) {
            atomicAdd(faults + layer * 3 + 1, repeated);
        }
        if (all_zero) {
            atomicAdd(faults + layer * 3 + 2, all_zero);
        }
    }

    if (binned) {
        __syncthreads();
        for (int bin = threadIdx.x; bin < group * experts; bin += blockDim.x) {
            const int of = (int)blockIdx.y * group + bin / experts;
            if (of < layers && bins[bin]) {
                atomicAdd(counts + (long long)of * experts + bin % experts, bins[bin]);
            }
        }
    }
}

#undef KERNEL
#undef ROW_BYTES
#undef DEPTH
#undef MANY
