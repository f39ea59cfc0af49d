// Package output writes the output of the client commands.
//
// Data (a table, JSON, YAML or bare names) goes to one writer, messages (changes, hints, warnings)
// to the other. The JSON is the API's own and stable. YAML is the same document with the same keys
// in the same order. Tables are for people and may change. Colors are used on terminals only, and
// always together with a word. Control characters are removed from all external text before it
// reaches a terminal.
package output
