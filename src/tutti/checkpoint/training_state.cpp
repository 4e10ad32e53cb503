// checkpoint/training_state.cpp: saving. Loading is in load_pieces.cpp.
#include "tutti/checkpoint/training_state.h"

#include <fmt/format.h>

#include <map>

namespace tutti::checkpoint {

std::string rank_file_name(int rank, int ranks) { return fmt::format("rank-{:05}-of-{:05}.safetensors", rank, ranks); }

Piece whole_piece(const std::string& name, const Tensor& tensor) {
    return {.name = name,
            .shape = tensor.shape(),
            .blocks = mesh::whole_part(tensor.shape()).blocks,
            .values = tensor.reshape({tensor.numel()})};
}

HostState::HostState(const std::vector<Piece>& pieces, HostMemory memory) {
    for (const Piece& piece : pieces) {
        if (!piece.owned) continue;
        const Tensor& values = piece.values;
        check(values.contiguous(), "checkpoint: ", piece.name, " must be contiguous");
        check(piece.name.find(kBlockSeparator) == std::string::npos, "checkpoint: the name ", piece.name,
              " must not have a '", kBlockSeparator, "', which begins the offset of a block");
        Held held{piece, nullptr};
        if (memory == HostMemory::copy || !values.device().host_readable()) {
            held.copy = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(values.bytes()));
            values.device().copy_out(held.copy.get(), values.view().data, values.bytes());
        }
        held_.push_back(std::move(held));
    }
}

int64_t HostState::copied_bytes() const {
    int64_t sum = 0;
    for (const Held& held : held_) sum += held.copy ? held.piece.values.bytes() : 0;
    return sum;
}

FileToWrite HostState::file(int rank, int ranks) const {
    std::vector<TensorToWrite> entries;
    for (const Held& held : held_) {
        const DType dtype = held.piece.values.dtype();
        const auto* data = held.copy ? held.copy.get() : held.piece.values.view().as<const std::byte>();
        for (const auto& [block, begin] : held.piece.blocks) {
            const auto bytes = static_cast<size_t>(block.numel() * size_of(dtype));
            entries.push_back({entry_name(held.piece.name, held.piece.shape, block),
                               dtype,
                               {block.sizes.begin(), block.sizes.end()},
                               std::span<const std::byte>(data + begin * size_of(dtype), bytes)});
        }
    }
    return safetensors_file(rank_file_name(rank, ranks), std::move(entries));
}

std::vector<TensorRecord> HostState::tensors() const {
    std::map<std::string, TensorRecord> records;
    for (const Held& held : held_) {
        const Piece& piece = held.piece;
        TensorRecord& record =
            records.try_emplace(piece.name, TensorRecord{piece.name, piece.values.dtype(), piece.shape, {}})
                .first->second;
        check(record.dtype == piece.values.dtype() && record.shape == piece.shape, "checkpoint: pieces of ", piece.name,
              " are of ", record.shape, " ", record.dtype, " and of ", piece.shape, " ", piece.values.dtype());
        for (const HeldBlock& held_block : piece.blocks) record.blocks.push_back({0, held_block.block});
    }
    std::vector<TensorRecord> tensors;
    for (auto& [name, record] : records) tensors.push_back(std::move(record));
    return tensors;
}

}  // namespace tutti::checkpoint
