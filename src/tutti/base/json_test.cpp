#include "tutti/base/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "tutti/base/testing/scratch.h"

namespace tutti {
namespace {

TEST(Json, PrintsWhatItReads) {
    const std::string text =
        R"({"z":null,"a":[true,false,[],{}],"n":[0,-7,9223372036854775807,18446744073709551615,-9223372036854775808],)"
        R"("x":[0.1,1.0,-0.0,1e-05,1.5e+300,5e-324],"t":"\"\\\b\f\n\r\t\u0001ä€😀"})";
    const Json json = Json::parse(text);
    EXPECT_EQ(json.dump(), text);
    EXPECT_EQ(json.dump(2).substr(0, 33), "{\n  \"z\": null,\n  \"a\": [\n    true,");
    EXPECT_EQ(Json::parse(json.dump(2)), json);
    EXPECT_EQ(json.items()[0].key, "z");
    EXPECT_EQ(json["x"][5].get<double>(), 5e-324);
    EXPECT_TRUE(std::signbit(json["x"][2].get<double>()));
    EXPECT_EQ(json["t"].text(), "\"\\\b\f\n\r\t\x01ä€😀");
    EXPECT_EQ(Json::parse("\"\\ud83d\\ude00\"").text(), "😀");
}

TEST(Json, MakesObjectsOfPairsAndListsOfTheRest) {
    Json json = {
        {"name", "x"}, {"list", {1, 2}}, {"one", {"text"}}, {"empty", Json::array()}, {"object", Json::object()}};
    json["list"].push_back(2.5);
    json["new"] = std::vector<bool>{true};
    json.update({{"name", std::map<std::string, int>{{"b", 2}, {"a", 1}}}});
    json.erase("one");
    EXPECT_EQ(json.dump(), R"({"name":{"a":1,"b":2},"list":[1,2,2.5],"empty":[],"object":{},"new":[true]})");
    EXPECT_EQ(Json({{"a", 1}, {"b", 2}}), Json({{"b", 2.0}, {"a", 1u}}));
    EXPECT_NE(Json({{"a", 1}}), Json({{"a", 1}, {"b", 2}}));
    EXPECT_EQ(Json(std::nan("")).dump() + Json(INFINITY).dump(), "nullnull");
}

TEST(Json, SaysWhichByteIsWrong) {
    struct Case {
        std::string text;
        size_t byte;
        const char* reason;
    };
    using namespace std::string_literals;
    for (const Case& c : std::vector<Case>{{"", 0, "unexpected end of input"},
                                           {"{\"rank\": ", 9, "unexpected end of input"},
                                           {"[1,]", 3, "unexpected ']'"},
                                           {"[01]", 2, "unexpected number"},
                                           {"{} x", 3, "invalid literal"},
                                           {"[1e999]", 5, "number overflow"},
                                           {"[\"\xff\"]", 2, "ill-formed UTF-8"},
                                           {"{}\0{}"s, 2, "a NUL byte"},
                                           {R"({"a": {"b": 1}, "a": 2})", 18, "\"a\" occurs twice"},
                                           {"[[[]]]", 2, "nested more than 2 levels deep"},
                                           {std::string(1000000, '['), 2, "nested more than 2 levels deep"}}) {
        try {
            Json::parse(c.text, 2);
            ADD_FAILURE() << c.text << " was read";
        } catch (const JsonError& error) {
            EXPECT_EQ(error.byte, c.byte) << c.text.substr(0, 80);
            EXPECT_NE(error.reason.find(c.reason), std::string::npos) << error.reason;
            EXPECT_EQ(error.what(), concat("byte ", c.byte, ": ", error.reason));
        }
        EXPECT_EQ(Json::try_parse(c.text).has_value(), c.text == "[[[]]]");
    }
    EXPECT_EQ(Json::parse("\xef\xbb\xbf[[2]]", 2)[0][0], 2);
    EXPECT_EQ(Json::parse(R"({"a": {"b": 1}, "b": 2})")["b"], 2);
}

TEST(Json, RefusesValuesOfAnotherType) {
    const Json json =
        Json::parse(R"({"i": 300, "x": 2.5, "whole": 3.0, "t": "text", "n": -1, "large": 9223372036854775808})");
    EXPECT_EQ(json["whole"].get<int>(), 3);
    EXPECT_EQ(json["large"].get<uint64_t>(), uint64_t{1} << 63);
    EXPECT_EQ(json.value("absent", 7), 7);
    EXPECT_EQ(json.value("t", "other"), "text");
    EXPECT_EQ(json.find("absent"), nullptr);
    EXPECT_TRUE(json["i"].is_integer(0, 300) && !json["i"].is_integer(0, 299) && !json["whole"].is_integer());
    const auto refused = [](auto use) { return message_of<DataError>(use); };
    EXPECT_EQ(refused([&] { json.at("absent"); }), "\"absent\" is missing");
    EXPECT_EQ(refused([&] { json["i"].get<uint8_t>(); }), "required a whole number up to 255, got 300");
    EXPECT_EQ(refused([&] { json["i"].get<int8_t>(); }), "required a whole number from -128 to 127, got 300");
    EXPECT_EQ(refused([&] { json["n"].get<size_t>(); }),
              concat("required a whole number from 0 to ", INT64_MAX, ", got -1"));
    EXPECT_EQ(refused([&] { json["large"].get<int64_t>(); }), "required a whole number, got 9223372036854775808");
    EXPECT_EQ(refused([&] { json["x"].get<int>(); }), "required a whole number, got 2.5");
    EXPECT_EQ(refused([&] { json["t"].get<double>(); }), "required a number, got \"text\"");
    EXPECT_EQ(refused([&] { json["t"].get<bool>(); }), "required true or false, got \"text\"");
    EXPECT_EQ(refused([&] { json["t"]["x"]; }), "required an object, got \"text\"");
    EXPECT_EQ(refused([&] { json["t"][0]; }), "required a list, got \"text\"");
    EXPECT_EQ(refused([&] { Json({1, 2})[2]; }), "element 2 of a list of 2");
}

TEST(Json, TextsThatAreNotUtf8) {
    const Json json = {{"a", "x\xffy"}};
    EXPECT_EQ(json.dump(-1, Json::InvalidUtf8::replace), "{\"a\":\"x\xef\xbf\xbdy\"}");
    EXPECT_EQ(message_of<DataError>([&] { json.dump(); }), "'x\xffy' is not UTF-8");
    std::ostringstream out;
    out << json;
    EXPECT_EQ(out.str(), "{\"a\":\"x\xef\xbf\xbdy\"}");
}

}  // namespace
}  // namespace tutti
