/* What no file of lib/ and tools/ may call. The list is read by tests/lint/banned.awk; included
 * after all system headers, this file makes gcc refuse the same names. Why: no bound on what is
 * written (strcpy to vsprintf), errors that cannot be told from values (atoi to atof), hidden state
 * that threads share (strtok to setlocale), stack sized by input (alloca), a shell or a race in the
 * name of a file (system to tempnam), and parts left out unsaid or an abort where memory is short
 * (json_copy to json_load_file). */
#ifndef CART_BASE_BANNED_H
#define CART_BASE_BANNED_H

#pragma GCC poison strcpy strcat strncpy strncat stpcpy sprintf vsprintf gets
#pragma GCC poison atoi atol atoll atof
#pragma GCC poison strtok strerror ctime asctime gmtime localtime rand srand random srandom        \
    setlocale
#pragma GCC poison alloca
#pragma GCC poison system popen tmpnam mktemp tempnam
#pragma GCC poison json_copy json_deep_copy json_loads json_loadb json_loadf json_load_file

#endif
