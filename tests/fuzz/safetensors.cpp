// tests/fuzz/safetensors.cpp: any bytes as a safetensors file. Either DataError, or a header in which every tensor lies
// inside the file and every byte of the data belongs to one.
#include "tutti/checkpoint/safetensors.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace {

using namespace tutti;

class Memory final : public checkpoint::ByteSource {
  public:
    explicit Memory(std::span<const std::byte> bytes) : bytes_(bytes) {}
    const std::string& path() const override { return path_; }
    int64_t size() const override { return static_cast<int64_t>(bytes_.size()); }
    void read(int64_t offset, std::span<std::byte> out) override {
        if (offset < 0 || offset > size() || static_cast<int64_t>(out.size()) > size() - offset) std::abort();
        std::copy_n(bytes_.begin() + offset, out.size(), out.begin());
    }

  private:
    std::span<const std::byte> bytes_;
    std::string path_ = "input";
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    try {
        const checkpoint::SafetensorsFile file(std::make_shared<Memory>(std::as_bytes(std::span(data, size))));
        int64_t covered = 0;
        for (const checkpoint::TensorInfo& tensor : file.tensors()) {
            std::vector<std::byte> bytes(static_cast<size_t>(tensor.bytes()));
            file.read(tensor.name, bytes);
            covered += tensor.bytes();
            int64_t values = size_of(tensor.dtype);
            for (const int64_t n : tensor.shape) values *= n;
            if (values != tensor.bytes() || file.find(tensor.name) != &tensor) std::abort();
        }
        int64_t header = 0;
        for (size_t i = 8; i-- > 0;) header = header * 256 + data[i];
        if (covered != static_cast<int64_t>(size) - 8 - header) std::abort();
    } catch (const DataError&) {  // the answer to damage
    }
    return 0;
}
