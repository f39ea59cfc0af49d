package static

import (
	"bytes"
	"crypto/sha256"
	"iter"
	"strconv"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// header starts a block if a line starts with it.
var header, lineOfHeader = []byte("[[service]]"), []byte("\n[[service]]")

// parseBlocks parses each block as a file of its own, or takes it from known, which has blocks of
// earlier versions of the file that were checked against the same pools. It succeeds only if each
// block has exactly one service, no problem, and a name that no other block has. It costs O(size of
// the file) for the digests, and more for blocks that are not known.
//
// The result is then that of ParseServices. A text that is valid TOML ends outside of strings,
// arrays and inline tables, so a header in the next line is one in the whole file, too. It adds a
// service to the list, and the keys and tables after it belong to this service alone, because its
// block has nothing else. FuzzBlocks compares both.
func parseBlocks(path string, data []byte, source string, pools []spec.Pool, known map[digest]*row) (rows map[vip.ServiceKey]*row, ok bool) {
	rows = make(map[vip.ServiceKey]*row, len(known))
	place := append([]byte(path), ':')
	for line, text := range blocks(data) {
		id := digest(sha256.Sum256(text))
		r := known[id]
		if r == nil {
			block := ParseServices(path, text, source, pools)
			if len(block.Services) != 1 || len(block.Problems) > 0 || block.Incomplete {
				return nil, false
			}
			r = &row{block.Services[0], block.Services[0].Origin, id}
		}
		// Text before the header is only in the first block, and the line of that header stays.
		place = strconv.AppendInt(place[:len(path)+1], int64(line), 10)
		if string(place) != r.origin && bytes.HasPrefix(text, header) {
			r = &row{r.service, string(place), id}
			r.service.Origin = r.origin
		}
		if _, twice := rows[r.service.Key]; twice {
			return nil, false
		}
		rows[r.service.Key] = r
	}
	return rows, len(rows) > 0
}

// blocks divides data before each line, but the first, that starts with the header. It returns each
// block with the number of its first line.
func blocks(data []byte) iter.Seq2[int, []byte] {
	return func(yield func(int, []byte) bool) {
		own := 0 // where the header of the next block is
		if !bytes.HasPrefix(data, header) {
			own = max(0, bytes.Index(data, lineOfHeader))
		}
		for line := 1; len(data) > 0; own = 0 {
			end := len(data)
			if i := bytes.Index(data[own+1:], lineOfHeader); i >= 0 {
				end = own + 1 + i + 1
			}
			if !yield(line, data[:end]) {
				return
			}
			line += bytes.Count(data[:end], []byte("\n"))
			data = data[end:]
		}
	}
}
