// text/files_beside.h: tokens in the files beside a tokenizer, read as transformers reads them: tokenizer_config.json,
// special_tokens_map.json, added_tokens.json, generation_config.json and config.json; beside a sentencepiece model also
// the added tokens of a tokenizer.json. A token that Tutti cannot apply is an error.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/text/byte_level.h"
#include "tutti/text/tokenizer.h"

namespace tutti::text {

class FilesBeside {
  public:
    // `tokenizer`: the path of its file. DataError for a file that is not JSON, or has an option that changes ids and
    // that Tutti lacks.
    explicit FilesBeside(const std::string& tokenizer);

    // Adds the tokens of the files to `added`. `id_of`: ids of the vocabulary; `next`: the first id after those of the
    // vocabulary and of `added`. DataError for a token whose id is missing or differs from that in the file.
    void add_tokens(std::vector<AddedToken>& added,
                    const std::function<std::optional<int32_t>(const std::string&)>& id_of, int32_t next) const;

    // bos, eos and pad by text from tokenizer_config.json, else special_tokens_map.json, else by id from
    // generation_config.json. `stop` has all eos ids of generation_config.json, else eos.
    SpecialIds special_ids(const std::function<std::optional<int32_t>(const std::string&)>& id_of) const;

    // A flag of tokenizer_config.json, such as add_bos_token. Transformers 5 reads add_bos_token and add_eos_token for
    // a tokenizer.model only: in a tokenizer.json the post-processor decides.
    std::optional<bool> flag(const char* name) const;
    std::string tokenizer_class() const;  // of tokenizer_config.json; "": not given
    // The class that makes the tokenizer in transformers: that of tokenizer_config.json, else of config.json, else of
    // its model. "": the model's class takes the file as it is, whatever these name, or none is known.
    std::string class_in_transformers() const;

  private:
    // A token as a file has it.
    struct Listed {
        std::string place;  // "DIR/added_tokens.json: <|im_end|>"
        AddedToken token;
        bool has_id = true, has_flags = true;
    };
    Json read(const char* name) const;
    std::string path(const char* name) const;
    // DataError unless a value is absent, null or `is_of_type`.
    void check_type(bool is_of_type, const char* file, const std::string& key, const Json& value,
                    const char* type) const;
    std::vector<Listed> listed() const;  // those with an id first, in the order of ids

    std::string tokenizer_;
    Json config_, map_, generation_, added_, model_, json_;  // null when there is no such file
};

}  // namespace tutti::text
