package strict

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/ironvip/ironvip/vip"
)

// maxDepth bounds the depth of a tree. No struct of the project needs more than six levels, and
// each level costs stack.
const maxDepth = 32

// ParseJSON reads one JSON object into a tree, with numbers as json.Number. Unlike encoding/json,
// it refuses invalid UTF-8, halves of UTF-16 pairs ("\\ud800"), duplicate keys in an object, more than 32 levels, and anything after
// the object. The caller fills in the problem's place. Syntax errors contain their line and column.
func ParseJSON(data []byte) (map[string]any, []vip.Problem) {
	if !utf8.Valid(data) {
		return nil, []vip.Problem{{Code: vip.CodeInvalid, Message: "is not valid UTF-8", Hint: "save it as UTF-8"}}
	}
	if at, found := unpaired(data); found {
		line, column := position(data, int64(at))
		return nil, []vip.Problem{{Code: vip.CodeInvalid, Message: fmt.Sprintf("not valid JSON near line %d, column %d: %s is half of a character", line, column, data[at:at+6]),
			Hint: "write both halves, or the character itself in UTF-8"}}
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	r := jsonReader{dec: dec}
	v, err := r.value("", 0)
	if err == nil {
		if _, after := dec.Token(); after != io.EOF {
			err = errors.New("something follows the object")
		}
	}
	if err != nil {
		line, column := position(data, dec.InputOffset())
		why := strings.TrimPrefix(err.Error(), "json: ")
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			why = "ends too early"
		}
		return nil, []vip.Problem{{Code: vip.CodeInvalid, Message: fmt.Sprintf("not valid JSON near line %d, column %d: %s", line, column, why)}}
	}
	tree, ok := v.(map[string]any)
	if !ok {
		return nil, []vip.Problem{{Code: vip.CodeInvalid, Message: "wants a JSON object, has " + Describe(v)}}
	}
	return tree, r.problems.List()
}

// unpaired returns the offset of the first escape of half a UTF-16 pair, for which encoding/json would
// put another character.
func unpaired(data []byte) (offset int, found bool) {
	escape := func(at int) (rune, bool) {
		if at+6 > len(data) || data[at] != '\\' || data[at+1] != 'u' {
			return 0, false
		}
		n, err := strconv.ParseUint(string(data[at+2:at+6]), 16, 16)
		return rune(n), err == nil
	}
	for i := bytes.IndexByte(data, '\\'); i >= 0 && i < len(data); i++ {
		if data[i] != '\\' {
			continue
		}
		switch half, is := escape(i); {
		case !is:
			i++ // the escaped character, which can be a backslash
		case utf16.IsSurrogate(half):
			if second, is := escape(i + 6); !is || utf16.DecodeRune(half, second) == utf8.RuneError {
				return i, true
			}
			i += 11
		default:
			i += 5
		}
	}
	return 0, false
}

// Merge changes a tree as a JSON merge patch (RFC 7396) states it. A null of the patch is kept in the
// tree, because Decode treats it as an omitted key and reports it if the key is unknown. The tree may
// share values with the patch afterwards.
func Merge(tree, patch map[string]any) {
	for key, v := range patch {
		into, isTable := tree[key].(map[string]any)
		if from, ok := v.(map[string]any); ok && isTable {
			Merge(into, from)
		} else {
			tree[key] = v
		}
	}
}

type jsonReader struct {
	dec      *json.Decoder
	problems vip.Problems
}

func (r *jsonReader) value(path string, depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("more than %d levels", maxDepth)
	}
	tok, err := r.dec.Token()
	if err != nil {
		return nil, err
	}
	switch tok {
	case json.Delim('{'):
		table := map[string]any{}
		for r.dec.More() {
			tok, err := r.dec.Token()
			if err != nil {
				return nil, err
			}
			key := tok.(string) // the decoder returns nothing else here
			at := Join(path, key)
			v, err := r.value(at, depth+1)
			if err != nil {
				return nil, err
			}
			if _, twice := table[key]; twice {
				r.problems.Add(vip.Problem{Code: vip.CodeInvalid, Field: at, Message: "comes twice", Hint: "keep one of them"})
			}
			table[key] = v
		}
		_, err := r.dec.Token()
		return table, err
	case json.Delim('['):
		list := []any{}
		for r.dec.More() {
			v, err := r.value(Index(path, len(list)), depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err := r.dec.Token()
		return list, err
	}
	return tok, nil
}

// position converts a byte offset into a line and a column, both from 1.
func position(data []byte, offset int64) (line, column int) {
	before := data[:min(int(offset), len(data))]
	return bytes.Count(before, []byte("\n")) + 1, len(before) - bytes.LastIndexByte(before, '\n')
}
