// comm/tcp/meeting.h: where processes that a launcher started without MPI find each other: rank 0 listens, the others
// connect. Read from the environment and from nothing else.
#pragma once

#include <string>

#include "tutti/comm/launcher.h"

namespace tutti::comm::tcp {

struct Meeting {
    std::string host;  // rank 0's: a name or an address
    int port = 0;      // rank 0 takes the first free one of `ports` ports from here; the others look through them
    int ports = 1;
    std::string job;     // what tells this job, and this attempt at it, from others that may meet at the same ports
    std::string origin;  // the variables that said so: "MASTER_ADDR, MASTER_PORT + 1"
};

// TUTTI_RENDEZVOUS=HOST:PORT, whoever started the process; else by launcher:
//   torchrun    MASTER_ADDR and the 16 ports after MASTER_PORT, which is the agent's own store
//   kubernetes  MASTER_ADDR:MASTER_PORT
//   slurm       the first host of the step's nodes, and 16 ports from one that the numbers of job and step choose
// UsageError with the variable that is missing or wrong; also for other launchers, which say no address.
Meeting meeting_of(const Launch& launch, const Environment& environment);

// The first host of a list as Slurm prints it: "node[01-03,7],gpu2" -> "node01".
std::string first_host(const std::string& nodes);

}  // namespace tutti::comm::tcp
