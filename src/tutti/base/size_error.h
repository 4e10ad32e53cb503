// base/size_error.h: the refusal of a size that a smaller microbatch may not have.
#pragma once

#include "tutti/base/error.h"

namespace tutti {

// A tensor has more values than a kernel takes at once: choose smaller microbatches.
class SizeError : public UsageError {
  public:
    using UsageError::UsageError;
};

}  // namespace tutti
