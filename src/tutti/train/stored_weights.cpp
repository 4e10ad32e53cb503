// train/stored_weights.cpp: the weights of [model] hf, checked and loaded (trainer.h).
#include <filesystem>

#include "tutti/checkpoint/digest.h"
#include "tutti/device/meta/meta_device.h"
#include "tutti/engine/engine.h"
#include "tutti/hf/weights.h"
#include "tutti/kernels/meta/meta_table.h"
#include "tutti/models/model.h"
#include "tutti/train/trainer.h"

namespace tutti::train {

void check_stored_weights(const spec::RunSpec& run) {
    if (run.model.hf.empty() || !std::filesystem::exists(run.model.hf)) return;  // else a run may resume
    const auto device = make_meta_device({});
    const kernels::KernelTable table = kernels::meta_table(kernels::reference_table());
    ops::Context ctx{*device, table};
    checkpoint::PosixFileSystem files;
    const models::Model model = models::make_model(ctx, run.model, run.train.seq_len);
    hf::StoredWeights::in_directory(files, run.model.hf, model);
}

void load_stored_weights(engine::Engine& engine) {
    checkpoint::PosixFileSystem files;
    const std::string& directory = engine.run.model.hf;
    if (engine.groups.world().rank() == 0) checkpoint::verify_sums(files, directory);
    const auto stored = hf::StoredWeights::in_directory(files, directory, engine.model);
    engine.data_parallel->load_masters([&] {
        for (const optim::ParameterShard& p : engine.optimizer.parameter_shards())
            stored.load(*p.parameter, p.blocks(), p.master);
    });
}

}  // namespace tutti::train
