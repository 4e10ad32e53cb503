// spec/hf/scan.h: the keys of config.json of the classes of transformers with the scan of Mamba-2: Granite 4
// (granitemoehybrid), Nemotron-H, Falcon-H1, and Mamba-2 itself.
#pragma once

#include "tutti/spec/hf/keys.h"

namespace tutti::spec {

void read_granite4(Keys& keys, ModelSpec& model);
void write_granite4(const ModelSpec& model, Json& json);

// The layers of a Nemotron-H, by its pattern.
int64_t nemotron_layers(Keys& keys);
void read_nemotron(Keys& keys, ModelSpec& model);
void write_nemotron(const ModelSpec& model, Json& json);

void read_falcon(Keys& keys, ModelSpec& model);
void write_falcon(const ModelSpec& model, Json& json);

// A Mamba-2 has scans alone. Of the sizes of attention, which have no effect, the heads are those of the scan.
void read_mamba2(Keys& keys, ModelSpec& model);
void write_mamba2(const ModelSpec& model, Json& json);

}  // namespace tutti::spec
