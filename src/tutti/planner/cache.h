// planner/cache.h: what prices need again and again, made once.
#pragma once

#include <map>
#include <mutex>
#include <utility>

namespace tutti::planner {

// Values stay where they are. Safe to share between threads, of which two may make the same value.
template <class Key, class Value>
class Cache {
  public:
    template <class Make>
    const Value& get(const Key& key, const Make& make) {
        {
            const std::lock_guard lock(mutex_);
            if (const auto known = values_.find(key); known != values_.end()) return known->second;
        }
        Value made = make();
        const std::lock_guard lock(mutex_);
        return values_.try_emplace(key, std::move(made)).first->second;
    }
    const std::map<Key, Value>& values() const { return values_; }  // while no thread gets any

  private:
    std::mutex mutex_;
    std::map<Key, Value> values_;
};

}  // namespace tutti::planner
