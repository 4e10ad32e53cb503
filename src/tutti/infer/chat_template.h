// infer/chat_template.h: the chat template of a stored model: a conversation as the text that the model reads.
#pragma once

#include <string>

#include "tutti/infer/stored_model.h"
#include "tutti/jinja/template.h"

namespace tutti::infer {

class ChatTemplate {
  public:
    // `file` "": chat_template.jinja, or the chat_template of chat_template.json or tokenizer_config.json, first of the
    // model's files and then beside its tokenizer. UsageError that says where no template was found; DataError for one
    // that is damaged. Of several templates in one file the one named "default".
    ChatTemplate(const StoredModel& stored, const std::string& file);

    // `messages`: [{"role", "content"}, ...]. The template ends with the beginning of an answer. The members of `more`
    // are further variables, such as enable_thinking. jinja::Refused, jinja::TemplateError.
    jinja::Rendered render(const Json& messages, const Json& more = Json::object()) const;
    const std::string& path() const { return path_; }

  private:
    std::string path_;  // the file of the template
    Json tokens_;       // bos_token and the others that the files name, as texts
    jinja::Template template_;
};

}  // namespace tutti::infer
