// Things that calls work with, one at a time, and leave for the next call: caches, buffers.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace spillway {

template <typename Thing>
class Pool {
 public:
  // One thing for as long as this lives; `make` makes a new one where none is idle.
  class Lease {
   public:
    template <typename Make>
    Lease(Pool& pool, const Make& make) : pool_(pool) {
      {
        const std::scoped_lock lock(pool_.mutex_);
        if (!pool_.idle_.empty()) {
          thing_ = std::move(pool_.idle_.back());
          pool_.idle_.pop_back();
        }
      }
      if (!thing_) thing_ = make();
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    ~Lease() {
      const std::scoped_lock lock(pool_.mutex_);
      pool_.idle_.push_back(std::move(thing_));
    }
    Thing& operator*() const { return *thing_; }

   private:
    Pool& pool_;
    std::unique_ptr<Thing> thing_;
  };

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Thing>> idle_;
};

}  // namespace spillway
