package output

import (
	"errors"
	"slices"
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

// Set parses a format. With String and Type, it makes *Format the value of a command line flag. The
// error says what to use.
func (f *Format) Set(s string) error {
	if !slices.Contains(append(FormatNames(), string(TOML)), s) {
		return errors.New("use " + FormatList())
	}
	*f = Format(s)
	return nil
}

// String returns the format's name.
func (f *Format) String() string { return string(*f) }

// Type returns the name of the value in help texts.
func (f *Format) Type() string { return "format" }

// FormatNames returns the names of Formats.
func FormatNames() []string {
	return Texts(Formats(), func(f Format) string { return string(f) })
}

// FormatList returns "table, wide, json, yaml or name".
func FormatList() string {
	names := FormatNames()
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}
