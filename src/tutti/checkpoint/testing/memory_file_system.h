// checkpoint/testing/memory_file_system.h: a disk in memory that can lose power. It separates durable data from data in
// the page cache, and makes the images that a crash may leave (SQLite's crash VFS and ALICE, OSDI'14, are the models):
// un-synced data lost, zero-filled or torn at 512 bytes, un-synced names present or absent in any combination. Stricter
// than ext4 or XFS, as POSIX allows. Only tests include it.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/to_size.h"
#include "tutti/checkpoint/file_system.h"

namespace tutti::checkpoint::testing {

// The power is cut before this call. Deliberately not a std::exception: no handler of errors may survive it.
struct PowerCut {};

enum class Survives { nothing, everything, zeros, random };

struct CrashImage {
    Survives data = Survives::nothing;   // of un-synced writes; zeros: the size changed, the bytes did not arrive
    Survives names = Survives::nothing;  // of un-synced directory entries; nothing, everything or random
    uint32_t seed = 0;
};

class MemoryFileSystem : public FileSystem {
  public:
    MemoryFileSystem() : root_(std::make_shared<Node>(true)) {}

    // State-changing calls so far, by name; the power is cut before call number `crash_at`.
    std::vector<std::string> calls;
    int64_t crash_at = -1;

    std::unique_ptr<MemoryFileSystem> after_crash(const CrashImage& image) const {
        auto after = std::make_unique<MemoryFileSystem>();
        std::mt19937 random(image.seed);
        after->root_ = survivor_of(*root_, image, random);
        return after;
    }

    // Direct access for tests that damage a file.
    std::string& content(const std::string& path) { return node_at(path, "content")->bytes; }

    FileHandle create_exclusive(const std::string& path) override {
        called("create " + path);
        if (find(path) != nullptr) throw IoError("create", path, EEXIST);
        auto file = std::make_shared<Node>(false);
        change_entry(path, file);
        return open_node(std::move(file), path);
    }
    int64_t pwrite(const FileHandle& file, std::span<const std::byte> bytes, int64_t offset) override {
        called("write " + file.path);
        Node& node = *open_.at(file.id);
        const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        node.apply(node.bytes, {offset, text});
        node.pending.push_back({offset, text});
        return static_cast<int64_t>(bytes.size());
    }
    void allocate(const FileHandle& file, int64_t size) override {
        called("allocate " + file.path);
        Node& node = *open_.at(file.id);
        if (static_cast<int64_t>(node.bytes.size()) < size) node.bytes.resize(to_size(size));
    }
    void fsync(const FileHandle& file) override {
        called("fsync " + file.path);
        Node& node = *open_.at(file.id);
        node.durable = node.bytes;
        node.pending.clear();
    }
    void close(const FileHandle& file) override {
        if (!dead_) called("close " + file.path);
        open_.erase(file.id);
    }
    void rename(const std::string& from, const std::string& to) override {
        called("rename " + from + " to " + to);
        const auto node = node_at(from, "rename");
        const auto target = find(to);
        if (target != nullptr && target->directory && !target->entries.empty())
            throw IoError("rename to", to, ENOTEMPTY);
        check(parent_of(from) == parent_of(to), "this model renames inside one directory only");
        const auto parent = node_at(parent_of(from), "rename");
        parent->apply({std::string(last_name_of(from)), std::string(last_name_of(to)), node});
    }
    void unlink(const std::string& path) override {
        called("unlink " + path);
        if (node_at(path, "unlink")->directory) throw IoError("unlink", path, EISDIR);
        change_entry(path, nullptr);
    }
    void make_directory(const std::string& path) override {
        called("mkdir " + path);
        if (find(path) != nullptr) throw IoError("mkdir", path, EEXIST);
        change_entry(path, std::make_shared<Node>(true));
    }
    void remove_directory(const std::string& path) override {
        called("rmdir " + path);
        if (!node_at(path, "rmdir")->entries.empty()) throw IoError("rmdir", path, ENOTEMPTY);
        change_entry(path, nullptr);
    }
    void require_writable(const std::string&) override {}
    void fsync_directory(const std::string& path) override {
        called("fsync_directory " + path);
        Node& node = *node_at(path, "fsync_directory");
        node.durable_entries = node.entries;
        node.pending_entries.clear();
    }

    FileHandle open_read(const std::string& path) override {
        auto node = node_at(path, "open");
        if (node->directory) throw IoError("open", path, EISDIR);
        return open_node(std::move(node), path);
    }
    int64_t pread(const FileHandle& file, std::span<std::byte> bytes, int64_t offset) override {
        const std::string& content = open_.at(file.id)->bytes;
        if (offset >= static_cast<int64_t>(content.size())) return 0;
        const size_t part = std::min(bytes.size(), content.size() - to_size(offset));
        if (part > 0) std::memcpy(bytes.data(), content.data() + offset, part);
        return static_cast<int64_t>(part);
    }
    int64_t size(const FileHandle& file) override { return static_cast<int64_t>(open_.at(file.id)->bytes.size()); }
    std::shared_ptr<ByteSource> map(const std::string& path) override {
        open_read(path);  // throws when it must
        return std::make_shared<Mapped>(node_at(path, "map"), path);
    }
    void drop_cache(const FileHandle&) override {}
    std::vector<std::string> list(const std::string& directory) override {
        std::vector<std::string> names;
        for (const auto& [name, node] : node_at(directory, "list")->entries) names.push_back(name);
        return names;
    }
    FileKind kind(const std::string& path) override {
        const auto node = find(path);
        if (node == nullptr) return FileKind::none;
        return node->directory ? FileKind::directory : FileKind::file;
    }
    std::unique_ptr<FileLock> lock(const std::string&, const std::string&) override {
        return std::make_unique<FileLock>();
    }

  private:
    struct Write {
        int64_t offset;
        std::string text;
    };
    struct Node;
    using NodePointer = std::shared_ptr<Node>;
    struct EntryChange {  // add: no `from`; remove: no `to`; rename: both, at once
        std::string from, to;
        NodePointer node;
    };
    struct Node {
        explicit Node(bool is_directory) : directory(is_directory) {}
        bool directory;
        std::string bytes, durable;
        std::vector<Write> pending;
        std::map<std::string, NodePointer> entries, durable_entries;
        std::vector<EntryChange> pending_entries;

        static void apply(std::string& content, const Write& write) {
            const size_t end = to_size(write.offset) + write.text.size();
            if (content.size() < end) content.resize(end);
            std::memcpy(content.data() + write.offset, write.text.data(), write.text.size());
        }
        static void apply(std::map<std::string, NodePointer>& names, const EntryChange& change) {
            const auto from = names.find(change.from);
            if (from != names.end() && (change.node == nullptr || from->second == change.node)) names.erase(from);
            if (!change.to.empty()) names[change.to] = change.node;
        }
        void apply(const EntryChange& change) {
            apply(entries, change);
            pending_entries.push_back(change);
        }
    };

    class Mapped final : public ByteSource {
      public:
        Mapped(NodePointer node, std::string path) : node_(std::move(node)), path_(std::move(path)) {}
        const std::string& path() const override { return path_; }
        int64_t size() const override { return static_cast<int64_t>(node_->bytes.size()); }
        void read(int64_t offset, std::span<std::byte> bytes) override {
            check(offset >= 0 && offset + static_cast<int64_t>(bytes.size()) <= size(), path_, ": out of its bytes");
            if (!bytes.empty()) std::memcpy(bytes.data(), node_->bytes.data() + offset, bytes.size());
        }

      private:
        NodePointer node_;
        std::string path_;
    };

    void called(std::string call) {
        if (dead_ || static_cast<int64_t>(calls.size()) == crash_at) {
            dead_ = true;
            throw PowerCut();
        }
        calls.push_back(std::move(call));
    }
    NodePointer find(const std::string& path) const {
        if (path == "/") return root_;
        const NodePointer parent = find(parent_of(path));
        if (parent == nullptr) return nullptr;
        const auto entry = parent->entries.find(std::string(last_name_of(path)));
        return entry == parent->entries.end() ? nullptr : entry->second;
    }
    NodePointer node_at(const std::string& path, const char* operation) const {
        NodePointer node = find(path);
        if (node == nullptr) throw IoError(operation, path, ENOENT);
        return node;
    }
    void change_entry(const std::string& path, const NodePointer& node) {
        const std::string name(last_name_of(path));
        const auto parent = node_at(parent_of(path), "change");
        parent->apply(node == nullptr ? EntryChange{name, "", nullptr} : EntryChange{"", name, node});
    }
    FileHandle open_node(NodePointer node, const std::string& path) {
        open_[++last_id_] = std::move(node);
        return {last_id_, path};
    }

    static NodePointer survivor_of(const Node& node, const CrashImage& image, std::mt19937& random) {
        const auto coin = [&] { return (random() & 1u) != 0; };
        auto after = std::make_shared<Node>(node.directory);
        auto names = node.durable_entries;
        for (const EntryChange& change : node.pending_entries)
            if (image.names == Survives::everything || (image.names == Survives::random && coin()))
                Node::apply(names, change);
        for (const auto& [name, child] : names) after->entries[name] = survivor_of(*child, image, random);
        after->durable_entries = after->entries;

        Survives data = image.data;
        if (data == Survives::random && random() % 4 == 0) data = Survives::zeros;
        after->bytes = data == Survives::everything ? node.bytes : node.durable;
        if (data == Survives::zeros || (data == Survives::random && coin())) after->bytes.resize(node.bytes.size());
        if (data == Survives::random)
            for (const Write& write : node.pending)
                for (size_t at = 0; at < write.text.size(); at += 512)  // a sector arrives whole or not
                    if (coin())
                        Node::apply(after->bytes,
                                    {write.offset + static_cast<int64_t>(at), write.text.substr(at, 512)});
        after->durable = after->bytes;
        return after;
    }

    NodePointer root_;
    std::map<int, NodePointer> open_;
    int last_id_ = 0;
    bool dead_ = false;
};

}  // namespace tutti::checkpoint::testing
