// A test of a Go program tells the broker of `fencepost serve --test` what goes wrong, with the
// standard library alone. Arguments: the URL of the control, the file of its token, the broker.
package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
)

// ask sends one request to the control; an answer that is not 200 is an error.
func ask(url, tokenFile, method, path string, question any) (map[string]any, error) {
	token, err := os.ReadFile(tokenFile)
	if err != nil {
		return nil, err
	}
	body := []byte{}
	if question != nil {
		if body, err = json.Marshal(question); err != nil {
			return nil, err
		}
	}
	request, err := http.NewRequest(method, url+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+string(token))
	reply, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer reply.Body.Close()
	answer := map[string]any{}
	if err := json.NewDecoder(reply.Body).Decode(&answer); err != nil {
		return nil, err
	}
	if reply.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s %s: %v", method, path, answer["error"])
	}
	return answer, nil
}

// apiVersions sends ApiVersions v0 to the broker; io.EOF if the connection is cut.
func apiVersions(address string) error {
	connection, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer connection.Close()
	frame := []byte{0, 18, 0, 0, 0, 0, 0, 1, 0, 2, 'g', 'o'}
	request := binary.BigEndian.AppendUint32(nil, uint32(len(frame)))
	if _, err := connection.Write(append(request, frame...)); err != nil {
		return err
	}
	_, err = io.ReadFull(connection, make([]byte, 4))
	return err
}

func main() {
	url, tokenFile, broker := os.Args[1], os.Args[2], os.Args[3]
	must := func(method, path string, question any) map[string]any {
		answer, err := ask(url, tokenFile, method, path, question)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return answer
	}
	must("POST", "/faults", map[string]any{
		"api": "ApiVersions", "action": "lose_reply", "client_id": "go",
	})
	fmt.Println("first:", apiVersions(broker))
	fmt.Println("second:", apiVersions(broker))
	must("POST", "/clock/advance", map[string]any{"minutes": 15})
	fmt.Println("committed:", len(must("GET", "/committed/refunds", nil)["records"].([]any)))
	fmt.Println("fired:", len(must("DELETE", "/faults", nil)["fired"].([]any)))
	_, err := ask(url, tokenFile, "POST", "/faults", map[string]any{"api": "EndTx", "action": "hold"})
	fmt.Println("refused:", err)
}
