#!/usr/bin/env python3
"""Simulates the blocks of attention's backward on Hopper: list scheduling on 132 multiprocessors, causal mask.

    bench/attention_turns.py [--share 0.65] [--turn 2500]

Compared are seven products in two kernels (dq by queries, dk and dv by keys) and five in one, whose blocks add to dq in
turns (src/tutti/kernels/cuda/attention_hopper_backward.cu). Times are clocks of one multiprocessor. A product of tiles
takes its arithmetic at 4096 a clock divided by `share`, the same in all kernels; an addition to dq holds its turn for
`turn` clocks, and the buffer that it is read from for half of that. Prints the share of all multiprocessors' time that
products fill, and times as fast as seven products in the order that BlockOrder gives them. No GPU is asked.
"""
import argparse
import heapq

MULTIPROCESSORS, BLOCK_START, CACHE = 132, 1200, 25 << 20
MODELS = [("llama3.2-1b", 1, 4096, 32, 8, 64), ("llama3.2-1b", 4, 4096, 32, 8, 64),
          ("llama3.2-3b", 1, 4096, 24, 8, 128), ("gpt2-124m", 4, 1024, 12, 12, 64),
          ("gpt2-124m", 16, 1024, 12, 12, 64)]


def block_order(pairs, tiles, streamed, last_first=False):
    """The places (pair of sequence and head, tile) in the order of block_order.h."""
    side_by_side = max(1, min(CACHE // streamed, pairs))
    for begin in range(0, pairs, side_by_side):
        width = min(side_by_side, pairs - begin)
        for tile in range(tiles):
            for pair in range(begin, begin + width):
                yield pair, tiles - 1 - tile if last_first else tile


def schedule(places, run):
    """run(place, start) returns (end, clocks of products). Returns the last end and the share of products."""
    free = [0.0] * MULTIPROCESSORS
    end = work = 0
    for place in places:
        finished, clocks = run(place, heapq.heappop(free) + BLOCK_START)
        heapq.heappush(free, finished)
        end, work = max(end, finished), work + clocks
    return end, work / MULTIPROCESSORS / end


def independent(places, clocks_of_tile):
    return schedule(places, lambda place, start: (start + clocks_of_tile(place[1]), clocks_of_tile(place[1])))


def in_turns(places, group, first_tile, tiles, clocks, turn, last_first=True):
    passed = {}

    def run(place, start):
        pair, block = place
        now, buffer_free, work, end = start, 0, 0, start
        streamed = range(first_tile(block), tiles)
        for tile in reversed(streamed) if last_first else streamed:
            for head in range(group):
                work += clocks
                now = max(now + clocks, buffer_free)
                begin = max(now, passed.get((pair, tile, head), 0))
                buffer_free, end = begin + turn / 2, begin + turn
                passed[pair, tile, head] = end
        return max(now, end), work

    return schedule(places, run)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=0.65, help="of the tensor cores' peak while products run")
    parser.add_argument("--turn", type=float, default=2500, help="clocks that one addition to dq takes")
    options = parser.parse_args()
    print("                                  seven products      five   tiles first   times\n"
          "                                  dq    dk, dv     in turns   to last   as fast")
    for name, B, T, H, kv_heads, D in MODELS:
        group, blocks, rows = H // kv_heads, T // 128, 128 if D == 64 else 64
        product = 2 * 128 * 128 * D / 4096 / options.share
        by_query, by_key = 4 * T * D // group, 4 * T * D * group
        dq, of_dq = independent(block_order(B * H, blocks, by_query, True), lambda tile: 3 * product * (tile + 1))
        dkv, of_dkv = independent(block_order(B * kv_heads, blocks, by_key),
                                  lambda tile: group * 4 * product * (blocks - tile))
        places = list(block_order(B * kv_heads, blocks, min(by_key, CACHE // 8)))
        tiles, clocks = T // rows, 5 * product * rows / 128
        arguments = (places, group, lambda block: block * 128 // rows, tiles, clocks, options.turn)
        five, of_five = in_turns(*arguments)
        _, ascending = in_turns(*arguments, last_first=False)
        print(f"{name:12} {B:2} x {T:4}  ({five / 1755:5.0f} us)   {of_dq:.2f}   {of_dkv:.2f}        {of_five:.2f}      "
              f"{ascending:.2f}      {(dq + dkv) / five:.2f}")


if __name__ == "__main__":
    main()
