// Package output writes what the client commands have to say.
//
// Data (a table, JSON, YAML or bare names) goes to one writer, talk (what
// changed, hints, warnings) to the other. The JSON is the API's own and stable;
// YAML is the same document with the same keys in the same order; tables are
// for people and may change. Colours are used on terminals only, and never
// without a word beside them. Everything that came from elsewhere is stripped
// of control characters before it reaches a terminal.
package output
