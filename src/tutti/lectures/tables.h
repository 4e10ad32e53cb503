// lectures/tables.h: the tables of a course on training large models: each figure by its textbook formula beside
// the figure of the formulas of published runs (published/), of a schedule's timeline, or of a rehearsal.
#pragma once

#include <string>
#include <vector>

#include "tutti/autograd/parameter.h"
#include "tutti/base/json.h"

namespace tutti::lectures {

enum class Show { text, count, bytes_per_value, gigabytes, percent, seconds, ratio };

struct Table {
    std::string id, title, source;
    struct Column {
        std::string name;
        Show show = Show::text;
    };
    std::vector<Column> columns;
    std::vector<std::vector<Json>> rows;  // a text, a number or null for each column
    std::string note;
};

Table bytes_of_a_parameter();
// Bytes of state of each of `devices` data-parallel devices under ZeRO-0 to 3, by recipe: an exact sum over parameters,
// in shards without padding.
Table state_of_a_device(const std::string& name, const std::vector<autograd::Parameter*>& parameters, int64_t devices);
Table zero_stages();             // 1 B and 70 B parameters over 64 devices
Table activations_of_a_layer();  // Korthikanti et al. 2022
Table checkpointed_chain();      // of layers that cost one unit each
Table pipeline_bubbles();
Table ring_volumes();
Table utilisation();  // MFU and HFU of four published runs
Table llama3();       // Llama Team 2024, table 4

std::vector<Table> all_tables();

std::string render(const Table& table);
Json to_json(const Table& table);

}  // namespace tutti::lectures
