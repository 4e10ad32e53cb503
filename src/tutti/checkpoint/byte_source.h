// checkpoint/byte_source.h: bytes that can be read at any offset: a file of a model (FileSystem::map), or a file of a
// checkpoint whose chunks are compared with their digests as they are read (checkpoint_reader.h). SafetensorsFile reads
// from either.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace tutti::checkpoint {

class ByteSource {
  public:
    virtual ~ByteSource() = default;
    virtual const std::string& path() const = 0;
    virtual int64_t size() const = 0;
    virtual void read(int64_t offset, std::span<std::byte> bytes) = 0;  // all of them, or it throws
};

}  // namespace tutti::checkpoint
