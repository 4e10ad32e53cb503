#include "tutti/comm/text.h"

#include <algorithm>

namespace tutti::comm {

std::vector<std::string> gather_texts(Communicator& ranks, const std::string& text) {
    const auto device = make_cpu_device(1);
    const auto n = static_cast<int64_t>(ranks.size());
    const auto own_length = static_cast<int64_t>(text.size());
    const Tensor length = Tensor::from_host<int64_t>(*device, {1}, {&own_length, 1}, Purpose::communication);
    const Tensor all_lengths = Tensor::empty(*device, {n}, DType::i64, Purpose::communication);
    ranks.all_gather(length, all_lengths).wait();
    const auto lengths = all_lengths.to_host<int64_t>();

    // All parts of a gather have one size: that of the longest text.
    const int64_t longest = std::max<int64_t>(1, *std::max_element(lengths.begin(), lengths.end()));
    std::vector<uint8_t> padded(text.begin(), text.end());
    padded.resize(static_cast<size_t>(longest));
    const Tensor part = Tensor::from_host<uint8_t>(*device, {longest}, padded, Purpose::communication);
    const Tensor all = Tensor::empty(*device, {n * longest}, DType::u8, Purpose::communication);
    ranks.all_gather(part, all).wait();

    std::vector<std::string> texts;
    const char* bytes = all.view().as<const char>();
    for (int64_t length_of_one : lengths) {
        texts.emplace_back(bytes, static_cast<size_t>(length_of_one));
        bytes += longest;
    }
    return texts;
}

void send_text(Communicator& ranks, const std::string& text, int to) {
    const auto device = make_cpu_device(1);
    const auto length = static_cast<int64_t>(text.size());
    ranks.send(Tensor::from_host<int64_t>(*device, {1}, {&length, 1}, Purpose::communication), to).wait();
    if (length == 0) return;
    const std::span bytes(reinterpret_cast<const uint8_t*>(text.data()), text.size());
    ranks.send(Tensor::from_host<uint8_t>(*device, {length}, bytes, Purpose::communication), to).wait();
}

std::string receive_text(Communicator& ranks, int from) {
    const auto device = make_cpu_device(1);
    const Tensor length = Tensor::empty(*device, {1}, DType::i64, Purpose::communication);
    ranks.receive(length, from).wait();
    const int64_t size = length.to_host<int64_t>()[0];
    if (size == 0) return "";
    const Tensor bytes = Tensor::empty(*device, {size}, DType::u8, Purpose::communication);
    ranks.receive(bytes, from).wait();
    return {bytes.view().as<const char>(), static_cast<size_t>(size)};
}

}  // namespace tutti::comm
