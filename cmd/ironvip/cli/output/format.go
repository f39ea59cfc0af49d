package output

import (
	"fmt"
	"strings"
)

// Format is a format of the output.
type Format string

// The formats. Wide is a table with more columns. Name is one name per line, for other programs.
// TOML is for the few views that have a TOML form; Formats omits it.
const (
	Table Format = "table"
	Wide  Format = "wide"
	JSON  Format = "json"
	YAML  Format = "yaml"
	Name  Format = "name"
	TOML  Format = "toml"
)

// Formats lists every format, the default first.
func Formats() []Format { return []Format{Table, Wide, JSON, YAML, Name} }

// Set parses a format. With String and Type, it makes *Format the value of a command line flag.
func (f *Format) Set(s string) error {
	for _, known := range append(Formats(), TOML) {
		if s == string(known) {
			*f = known
			return nil
		}
	}
	return fmt.Errorf("invalid output format %q: use %s", s, FormatList())
}

// String returns the format's name.
func (f *Format) String() string { return string(*f) }

// Type returns the name of the value in help texts.
func (f *Format) Type() string { return "format" }

// FormatList returns "table, wide, json, yaml or name".
func FormatList() string {
	var names []string
	for _, f := range Formats() {
		names = append(names, string(f))
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}
