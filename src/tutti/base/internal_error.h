// base/internal_error.h: an error that starting again cannot mend.
#pragma once

#include "tutti/base/error.h"

namespace tutti {

// A fault of this program, or a run that dies again and again: exit code 70. Schedulers that start failed
// jobs again must not start this one.
class InternalError : public Error {
  public:
    using Error::Error;
    int exit_code() const override { return exit_codes::kInternal; }
};

}  // namespace tutti
