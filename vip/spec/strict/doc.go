// Package strict fills a struct from a generic tree, as TOML and JSON readers
// give it, and tells everything that doesn't fit at once.
//
// In goes a tree of map[string]any, slices and scalars; out come the filled
// struct and one vip.Problem for each unknown key, value of a wrong type and
// malformed number, each with its path ("ports[0].port") and a remedy. The
// readers of those formats stop at the first of these or pass over it. The
// package reads no file and knows nothing of what the fields mean.
package strict
