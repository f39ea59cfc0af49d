// Package strict fills a struct from a generic tree, the result of a TOML or JSON reader, and
// reports all errors at once.
//
// Its input is a tree of map[string]any, slices and scalars. Its output is the filled struct and
// one vip.Problem for each unknown key, value of a wrong type, malformed number, and value that the
// tag values of its field excludes, with its path ("ports[0].port") and a hint. The format readers themselves stop at the first error or ignore it.
// The package reads no files and does not interpret fields.
package strict
