// Package logbuffer collects what a program or a logger writes while a test reads it.
package logbuffer

import (
	"bytes"
	"sync"
)

// Buffer is a bytes.Buffer for concurrent use. Its zero value is empty.
type Buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// String returns what was written so far. Nil has no text.
func (b *Buffer) String() string {
	if b == nil {
		return ""
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
