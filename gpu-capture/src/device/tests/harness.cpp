// Runs kernel.cu on the processor: cases from standard input, what the kernel wrote to standard output.
//
// A case is 13 int64 (see `Case`), a byte per layer, and the ids. The answer is the rows, the faults and the counts. All
// memory has the size that the kernel may touch, to the byte, so that a sanitizer sees a step beside it.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "shim.h"

// instances.h includes kernel.cu once per TOP_K and ID_BYTES, each in a namespace of its own, and has the table of them.
#include "instances.h"

struct Case {
    int64_t top_k, id_bytes, tokens, layers, experts, group, vector, in_shared, counted, blocks_x, blocks_y, threads, offset;
};

static bool read(void *to, size_t bytes) { return bytes == 0 || fread(to, 1, bytes, stdin) == bytes; }

static void write(const void *from, size_t bytes)
{
    if (bytes) {
        fwrite(from, 1, bytes, stdout);
    }
}

// Memory that ends where the kernel's does, and begins `offset` bytes beyond a multiple of 16.
struct Memory {
    char *base, *at;
    Memory(size_t bytes, size_t offset) : base((char *)std::malloc(bytes + offset)), at(base + offset) {}
    ~Memory() { std::free(base); }
};

int main()
{
    Case c;
    while (read(&c, sizeof c)) {
        std::vector<unsigned char> gates(c.layers);
        const size_t ids = c.tokens * c.layers * c.top_k;
        Memory input(ids * 4, c.offset * 4), rows(ids * c.id_bytes, 0);
        if (!read(gates.data(), gates.size()) || !read(input.at, ids * 4)) {
            return 1;
        }
        std::fill_n(rows.at, ids * c.id_bytes, (char)0xee);
        std::vector<unsigned> faults(c.layers * 3), counts(c.counted ? c.layers * c.experts : 0);
        std::vector<unsigned> shared(c.counted && c.in_shared ? c.group * c.experts : 0);

        std::barrier<> barrier(c.threads);
        shim_barrier = &barrier;
        shim_shared = shared.data();
        blockDim = {(unsigned)c.threads, 1, 1};
        gridDim = {(unsigned)c.blocks_x, (unsigned)c.blocks_y, 1};
        auto run = [&](unsigned thread) {
            for (unsigned y = 0; y < gridDim.y; y++) {
                for (unsigned x = 0; x < gridDim.x; x++) {
                    threadIdx = {thread, 0, 0};
                    blockIdx = {x, y, 0};
                    if (thread == 0) {
                        std::fill(shared.begin(), shared.end(), 0xabababab);
                    }
                    barrier.arrive_and_wait();
                    launch(c.top_k, c.id_bytes, (const int *)input.at, rows.at, faults.data(),
                           c.counted ? counts.data() : nullptr, gates.data(), c.tokens, c.layers, c.experts, c.group,
                           c.vector, c.in_shared);
                    barrier.arrive_and_wait();
                }
            }
        };
        std::vector<std::thread> threads;
        for (int64_t thread = 0; thread < c.threads; thread++) {
            threads.emplace_back(run, thread);
        }
        for (auto &thread : threads) {
            thread.join();
        }
        write(rows.at, ids * c.id_bytes);
        write(faults.data(), faults.size() * 4);
        write(counts.data(), counts.size() * 4);
        fflush(stdout);
    }
    return 0;
}
