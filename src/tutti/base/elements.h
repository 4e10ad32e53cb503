// base/elements.h: lists on a command line, such as "offload,cp". Apart from split.h, which includes nothing of ours.
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/split.h"

namespace tutti {

// The elements of the value of `option`, which point into `text`. UsageError for one that is empty, has a blank at an
// end, or is given twice.
inline std::vector<std::string_view> different_elements(std::string_view option, std::string_view text) {
    const std::vector<std::string_view> elements = split(text, ',');
    for (auto element = elements.begin(); element != elements.end(); ++element) {
        check<UsageError>(!element->empty() && element->front() != ' ' && element->back() != ' ', option, " \"", text,
                          "\": required elements with commas between them, such as A,B: none empty, and no blanks");
        check<UsageError>(std::find(elements.begin(), element, *element) == element, option, " \"", text,
                          "\": ", *element, " is given twice");
    }
    return elements;
}

}  // namespace tutti
