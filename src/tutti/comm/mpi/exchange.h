// comm/mpi/exchange.h: the data of one all_to_all: a message to every other rank of the group and one from each.
// Driven by staged_operation.cpp, which has made sure that all ranks mean the same operation.
#pragma once

#include <list>
#include <string>

#include "tutti/comm/mpi/stream.h"

namespace tutti::comm::mpi {

class Exchange {
  public:
    Exchange(Group& group, const Collective& collective, uint64_t sequence);
    bool advance();  // true once all is through; then Error when a rank sent another number than was expected
    std::string waits_for() const;

  private:
    struct Out {
        int to;
        Outgoing stream;
    };
    struct In {
        int from;
        Incoming stream;
    };
    Group& group_;
    std::list<Out> out_;
    std::list<In> in_, came_;
};

}  // namespace tutti::comm::mpi
