// cli/train_tokenizer.cpp: `tutti data train-tokenizer`.
#include "tutti/base/error.h"
#include "tutti/cli/data_commands.h"

namespace tutti::cli {

int train_tokenizer(const TrainTokenizerArguments&, const Io&) {
    throw UsageError("`tutti data train-tokenizer`: this version cannot learn a tokenizer yet");
}

}  // namespace tutti::cli
