// text/files_beside.h: what the files beside a tokenizer say of its tokens, as transformers reads them:
// tokenizer_config.json, special_tokens_map.json, added_tokens.json, generation_config.json and config.json; beside a
// sentencepiece model the added tokens of a tokenizer.json, too. Each of their tokens is honoured or refused by name.
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
    // `tokenizer`: the path of its file. DataError for a file that is not JSON, or asks for what would change ids and
    // Tutti lacks.
    explicit FilesBeside(const std::string& tokenizer);

    // Completes `added` by the tokens of the files. `id_of`: ids of the vocabulary; `next`: the first id behind it and
    // behind `added`. DataError for a token that has another id than the file says, or none.
    void add_tokens(std::vector<AddedToken>& added,
                    const std::function<std::optional<int32_t>(const std::string&)>& id_of, int32_t next) const;

    // bos, eos and pad by text from tokenizer_config.json, else special_tokens_map.json, else by id from
    // generation_config.json. `stop` has all eos ids of generation_config.json, else eos.
    SpecialIds special_ids(const std::function<std::optional<int32_t>(const std::string&)>& id_of) const;

    // A flag of tokenizer_config.json, such as add_bos_token. Transformers 5 reads add_bos_token and add_eos_token for
    // a tokenizer.model only: in a tokenizer.json the post-processor decides.
    std::optional<bool> flag(const char* name) const;
    std::string tokenizer_class() const;  // of tokenizer_config.json; "": not given
    // The class that transformers takes where tokenizer_config.json names none: that of config.json, or of its model.
    std::string class_of_model() const;

  private:
    // A token as a file has it.
    struct Listed {
        std::string place;  // "DIR/added_tokens.json: <|im_end|>"
        AddedToken token;
        bool has_id = true, has_flags = true;
    };
    Json read(const char* name) const;
    std::string path(const char* name) const;
    std::vector<Listed> listed() const;  // those with an id first, in the order of ids

    std::string tokenizer_;
    Json config_, map_, generation_, added_, model_, json_;  // null when there is no such file
};

}  // namespace tutti::text
